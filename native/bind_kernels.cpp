// The matrix and row kernels of every tier over numpy arrays, one function each, for the tests.
// Outputs are arrays of the caller's, changed in place.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind.h"
#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace farthing {
namespace {

using Bytes = Array<uint8_t, 1>;
using ConstBytes = Array<const uint8_t, 1>;
using Row = Array<float, 1>;
using ConstRow = Array<const float, 1>;

Format format_of(int number) {
  require(number >= 0 && number < kFormats, "format: no such number");
  return static_cast<Format>(number);
}

Mode mode_numbered(int number) {
  require(number >= 0 && number <= static_cast<int>(Mode::INT8),
          "mode: not one of FP32 0, BF16 1, INT8 2");
  return static_cast<Mode>(number);
}

Matrix matrix_of(int format, int group, int outputs, int inputs, const ConstBytes& packed) {
  require(outputs > 0 && inputs > 0, "matrix: outputs and inputs must be positive");
  Matrix matrix{format_of(format), group, outputs, inputs, packed.data()};
  require(has_group(matrix), "matrix: no such group");
  require(
      static_cast<int64_t>(packed.size()) == matrix_bytes(matrix.format, group, outputs, inputs),
      "matrix: packed must hold matrix_bytes");
  return matrix;
}

// `memory` is written to by prepare alone; linear reads it.
Prepared prepared_of(int mode, int rows, int inputs, const uint8_t* memory, size_t bytes) {
  require(rows > 0 && inputs > 0, "prepared: rows and inputs must be positive");
  require(static_cast<int64_t>(bytes) == prepared_bytes(mode_numbered(mode), rows, inputs),
          "prepared: memory must hold prepared_bytes");
  return lay_prepared(mode_numbered(mode), rows, inputs, const_cast<uint8_t*>(memory));
}

int64_t bind_matrix_bytes(int format, int64_t group, int64_t outputs, int64_t inputs) {
  require(layout(format_of(format)).span > 0 || group > 0, "matrix_bytes: no such group");
  return matrix_bytes(format_of(format), group, outputs, inputs);
}

int64_t bind_prepared_bytes(int mode, int64_t rows, int64_t inputs) {
  return prepared_bytes(mode_numbered(mode), rows, inputs);
}

// The caller answers for the size of `source`.
void bind_pack(const char* tier, int format, int group, ConstBytes source, int outputs, int inputs,
               int tile, int tile_end, Bytes packed) {
  Matrix matrix = matrix_of(format, group, outputs, inputs, ConstBytes(packed));
  require(0 <= tile && tile <= tile_end && tile_end <= matrix.tiles(), "pack: no such tiles");
  tier_named(tier).pack(matrix, source.data(), tile, tile_end, packed.data());
}

void bind_unpack_row(const char* tier, int format, int group, ConstBytes packed, int outputs,
                     int inputs, int output, Row out) {
  Matrix matrix = matrix_of(format, group, outputs, inputs, packed);
  require(output >= 0 && output < outputs, "unpack_row: no such output");
  require(out.size() == static_cast<size_t>(inputs), "unpack_row: out must hold inputs");
  tier_named(tier).unpack_row(matrix, output, out.data());
}

void bind_prepare(const char* tier, int mode, int rows, int inputs, Bytes memory, int row,
                  int row_end, int column, ConstRow x, int64_t stride, int count,
                  float fixed_scale) {
  Prepared prepared = prepared_of(mode, rows, inputs, memory.data(), memory.size());
  prepared.fixed_scale = fixed_scale;
  require(0 <= row && row < row_end && row_end <= rows, "prepare: no such rows");
  require(column >= 0 && column % kGroup == 0 && column + count <= inputs &&
              (count % kGroup == 0 || column + count == inputs),
          "prepare: no such columns");
  require(count > 0 && stride >= count &&
              static_cast<int64_t>(x.size()) >= (row_end - row - 1) * stride + count,
          "prepare: x is too short");
  tier_named(tier).prepare(prepared, row, row_end, column, x.data(), stride, count);
}

void bind_linear(const char* tier, int format, int group, ConstBytes packed, int outputs,
                 int inputs, int mode, int rows, ConstBytes memory, int row, int row_end, int tile,
                 int tile_end, Row out, int64_t stride) {
  Matrix matrix = matrix_of(format, group, outputs, inputs, packed);
  Prepared x = prepared_of(mode, rows, inputs, memory.data(), memory.size());
  require(x.mode == mode_of(matrix.format), "linear: the mode does not go with the format");
  require(0 <= row && row < row_end && row_end <= rows, "linear: no such rows");
  require(0 <= tile && tile < tile_end && tile_end <= matrix.tiles(), "linear: no such tiles");
  int64_t columns = int64_t{tile_end - tile} * kTile;
  require(stride >= columns &&
              static_cast<int64_t>(out.size()) >= (row_end - row - 1) * stride + columns,
          "linear: out is too short");
  tier_named(tier).linear(matrix, x, row, row_end, tile, tile_end, out.data(), stride);
}

void require_same(size_t a, size_t b, size_t out) {
  require(a == b && a == out, "rows differ in length");
}

void bind_rmsnorm(const char* tier, ConstRow x, ConstRow gain, float epsilon, Row out) {
  require_same(x.size(), gain.size(), out.size());
  tier_named(tier).rmsnorm(x.data(), gain.data(), epsilon, static_cast<int>(x.size()), out.data());
}

void bind_scale(const char* tier, ConstRow x, float factor, Row out) {
  require_same(x.size(), x.size(), out.size());
  tier_named(tier).scale(x.data(), factor, static_cast<int>(x.size()), out.data());
}

using PairFunction = void (*Kernels::*)(const float*, const float*, int, float*);

template <PairFunction Function>
void bind_pair(const char* tier, ConstRow a, ConstRow b, Row out) {
  require_same(a.size(), b.size(), out.size());
  (tier_named(tier).*Function)(a.data(), b.data(), static_cast<int>(a.size()), out.data());
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("matrix_bytes", bind_matrix_bytes, "format"_a, "group"_a, "outputs"_a, "inputs"_a);
  m.def("prepared_bytes", bind_prepared_bytes, "mode"_a, "rows"_a, "inputs"_a);
  m.def("pack", bind_pack, "tier"_a, "format"_a, "group"_a, "source"_a, "outputs"_a, "inputs"_a,
        "tile"_a, "tile_end"_a, "packed"_a.noconvert());
  m.def("unpack_row", bind_unpack_row, "tier"_a, "format"_a, "group"_a, "packed"_a, "outputs"_a,
        "inputs"_a, "output"_a, "out"_a.noconvert());
  m.def("prepare", bind_prepare, "tier"_a, "mode"_a, "rows"_a, "inputs"_a, "memory"_a.noconvert(),
        "row"_a, "row_end"_a, "column"_a, "x"_a, "stride"_a, "count"_a, "fixed_scale"_a);
  m.def("linear", bind_linear, "tier"_a, "format"_a, "group"_a, "packed"_a, "outputs"_a, "inputs"_a,
        "mode"_a, "rows"_a, "memory"_a, "row"_a, "row_end"_a, "tile"_a, "tile_end"_a,
        "out"_a.noconvert(), "stride"_a);
  m.def("rmsnorm", bind_rmsnorm, "tier"_a, "x"_a, "gain"_a, "epsilon"_a, "out"_a.noconvert());
  m.def("scale", bind_scale, "tier"_a, "x"_a, "factor"_a, "out"_a.noconvert());
  m.def("add", bind_pair<&Kernels::add>, "tier"_a, "a"_a, "b"_a, "out"_a.noconvert());
  m.def("swiglu", bind_pair<&Kernels::swiglu>, "tier"_a, "gate"_a, "up"_a, "out"_a.noconvert());
  m.def("geglu", bind_pair<&Kernels::geglu>, "tier"_a, "gate"_a, "up"_a, "out"_a.noconvert());
}

}  // namespace farthing
