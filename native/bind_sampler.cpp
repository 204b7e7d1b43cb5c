// The sampler and its arithmetic over numpy arrays, for the tests. Outputs are arrays of the
// caller's, changed in place.
#include <algorithm>
#include <cstring>

#include "bind.h"
#include "kernels.h"
#include "platform.h"
#include "sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace farthing {
namespace {

#include "kernels/noise.inl"

// A view of a core.SamplingRows; holds the arrays that it points into.
struct Rows {
  SamplingView view;
  nb::list arrays;
  int64_t entries;
  int64_t masks;
};

Rows read_rows(nb::handle object, int64_t rows, int vocabulary) {
  Rows result{};
  auto read = [&]<class Element>(const Element** data, const char* name, int64_t length) {
    nb::object value = object.attr(name);
    Array<const Element, 1> array;
    require(nb::try_cast(value, array, false), "sample: an array of the rows has another dtype");
    require(length < 0 || static_cast<int64_t>(array.size()) == length,
            "sample: an array of the rows has another length");
    *data = array.data();
    result.arrays.append(value);
    return static_cast<int64_t>(array.size());
  };
  SamplingView& view = result.view;
  read(&view.temperature, "temperature", rows);
  read(&view.top_k, "top_k", rows);
  read(&view.top_p, "top_p", rows);
  read(&view.min_p, "min_p", rows);
  read(&view.repetition_penalty, "repetition_penalty", rows);
  read(&view.presence_penalty, "presence_penalty", rows);
  read(&view.frequency_penalty, "frequency_penalty", rows);
  read(&view.seed, "seed", rows);
  read(&view.choice, "choice", rows);
  read(&view.position, "position", rows);
  read(&view.logprobs, "logprobs", rows);
  read(&view.target, "target", rows);
  read(&view.adjusted_starts, "adjusted_starts", rows + 1);
  result.entries = read(&view.adjusted_ids, "adjusted_ids", -1);
  read(&view.adjusted_bias, "adjusted_bias", result.entries);
  read(&view.adjusted_seen, "adjusted_seen", result.entries);
  read(&view.adjusted_count, "adjusted_count", result.entries);
  const nb::object mask_rows = object.attr("mask_rows"), masks = object.attr("masks");
  result.arrays.append(mask_rows);
  result.arrays.append(masks);
  result.masks = set_masks(view, nb::cast<std::optional<MaskRows>>(mask_rows, false),
                           nb::cast<std::optional<Masks>>(masks, false), rows, vocabulary);
  return result;
}

void bind_sample(const char* tier, Array<const float, 2> logits, nb::object sampling,
                 Array<int32_t, 1> tokens, Array<float, 1> logprob, Array<int32_t, 2> top_ids,
                 Array<float, 2> top_logprobs) {
  const int rows = static_cast<int>(logits.shape(0));
  const int vocabulary = static_cast<int>(logits.shape(1));
  const int width = static_cast<int>(top_ids.shape(1));
  for (size_t size : {tokens.size(), logprob.size(), top_ids.shape(0), top_logprobs.shape(0)}) {
    require(size == logits.shape(0), "sample: an output has another number of rows than logits");
  }
  require(top_logprobs.shape(1) == top_ids.shape(1), "sample: top_ids and top_logprobs differ");
  require(vocabulary > 0, "sample: the vocabulary is empty");
  const Rows held = read_rows(sampling, rows, vocabulary);
  check_sampling(held.view, rows, held.entries, held.masks, vocabulary, width);
  const Pages scratch(sample_scratch_bytes(vocabulary));
  for (int row = 0; row < rows; ++row) {
    const int64_t top = static_cast<int64_t>(row) * width;
    sample_row(tier_named(tier), logits.data() + static_cast<int64_t>(row) * vocabulary, vocabulary,
               held.view, row, scratch.data(), tokens.data() + row, logprob.data() + row,
               top_ids.data() + top, top_logprobs.data() + top, width);
  }
}

// Noise of `noise.size()` tokens from first_id on; the tiles that the kernel left out are
// untouched.
void bind_gumbel(const char* tier, uint64_t seed, uint32_t choice, uint32_t position,
                 uint32_t first_id, float least, Array<float, 1> noise) {
  require(first_id % 4 == 0, "gumbel: first_id must be a multiple of 4");
  const int count = static_cast<int>(noise.size());
  for (int done = 0; done < count; done += kNoiseTile) {
    tier_named(tier).gumbel({seed, choice, position}, first_id + static_cast<uint32_t>(done),
                            std::min(kNoiseTile, count - done), least, noise.data() + done);
  }
}

int bind_argmax(const char* tier, Array<const float, 1> x) {
  return tier_named(tier).argmax(x.data(), static_cast<int>(x.size()));
}

double bind_sum_exp(const char* tier, Array<const float, 1> x, float shift) {
  return tier_named(tier).sum_exp(x.data(), static_cast<int>(x.size()), shift);
}

template <double (*function)(double)>
void bind_each(Array<const double, 1> x, Array<double, 1> out) {
  require(x.size() == out.size(), "exp and log: x and out differ in length");
  for (size_t i = 0; i < x.size(); ++i) out.data()[i] = function(x.data()[i]);
}

}  // namespace

void bind_sampler(nb::module_& m) {
  m.def("sample", bind_sample, "tier"_a, "logits"_a, "rows"_a, "tokens"_a.noconvert(),
        "logprob"_a.noconvert(), "top_ids"_a.noconvert(), "top_logprobs"_a.noconvert());
  m.def("gumbel", bind_gumbel, "tier"_a, "seed"_a, "choice"_a, "position"_a, "first_id"_a,
        "least"_a, "noise"_a.noconvert());
  m.def("argmax", bind_argmax, "tier"_a, "x"_a);
  m.def("sum_exp", bind_sum_exp, "tier"_a, "x"_a, "shift"_a);
  m.def("exp_double", bind_each<exp_double>, "x"_a, "out"_a.noconvert());
  m.def("log_double", bind_each<log_double>, "x"_a, "out"_a.noconvert());
}

}  // namespace farthing
