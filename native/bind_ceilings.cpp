// The machine's limits, for backends/ceilings.py, and what measures them, for the tests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "bind.h"
#include "ceilings.h"

namespace nb = nanobind;

namespace farthing {
namespace {

Mode mode_of(int mode) {
  require(mode >= 0 && mode <= static_cast<int>(Mode::INT8), "no such mode");
  return static_cast<Mode>(mode);
}

void make_ceilings(Ceilings* place, std::optional<std::string> tier, int threads, int64_t bytes) {
  const Kernels& kernels = tier_named(tier ? tier->c_str() : nullptr);
  nb::gil_scoped_release unlocked;
  new (place) Ceilings(kernels, threads, bytes);
}

double read(Ceilings& ceilings, bool huge_pages, int64_t ahead) {
  require(ahead >= 0, "nothing can be fetched behind a load");
  nb::gil_scoped_release unlocked;
  return ceilings.read(huge_pages, ahead);
}

double multiply(Ceilings& ceilings, int mode, double seconds) {
  const Mode known = mode_of(mode);
  nb::gil_scoped_release unlocked;
  return ceilings.multiply(known, seconds);
}

int32_t read_all(const char* tier, Array<const uint8_t, 1> data, int64_t ahead) {
  require(data.size() % kReadTurn == 0, "read_all: the data must be whole turns");
  return tier_named(tier).read_all(data.data(), static_cast<int64_t>(data.size()), ahead);
}

int64_t multiply_rounds(const char* tier, int mode, int64_t rounds) {
  return tier_named(tier).multiply(mode_of(mode), rounds);
}

}  // namespace

void bind_ceilings(nb::module_& m, nb::module_& kernels) {
  nb::class_<Ceilings>(m, "Ceilings")
      .def("__init__", &make_ceilings, nb::arg("tier").none(), nb::arg("threads"),
           nb::arg("buffer_bytes"))
      .def_prop_ro("tier", [](const Ceilings& c) { return c.kernels().name; })
      .def_prop_ro("bytes", &Ceilings::bytes)
      .def("read", &read)
      .def("multiply", &multiply);
  kernels.attr("read_turn") = kReadTurn;
  kernels.def("read_all", &read_all);
  kernels.def("multiply", &multiply_rounds);
}

}  // namespace farthing
