// The Python module farthing._native: bindings only.
#include "bind.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/list.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "program.h"
#include "stages.h"

namespace nb = nanobind;

namespace farthing {

// Of everything that computes; native/kernel_version.cmake writes it.
extern const char* const kernel_version;

namespace {

template <class T>
using Vector = Array<const T, 1>;
template <class T>
using Table = Array<const T, 2>;
template <class T>
using OutVector = Array<T, 1>;
template <class T>
using OutTable = Array<T, 2>;

using SourceArguments = std::tuple<int, int, float, float>;   // value, gain, epsilon, fixed scale
using ProductArguments = std::tuple<int, int>;                // matrix, bias
using HeadArguments = std::tuple<int, int, int, float, int>;  // matrix, bias, gain, epsilon, rope

Input input_of(const SourceArguments& a) {
  return {std::get<0>(a), std::get<1>(a), std::get<2>(a), std::get<3>(a)};
}
Product product_of(const ProductArguments& a) { return {std::get<0>(a), std::get<1>(a)}; }
HeadProduct heads_of(const HeadArguments& a) {
  return {{std::get<0>(a), std::get<1>(a)}, std::get<2>(a), std::get<3>(a), std::get<4>(a)};
}

void make_program(Program* place, std::optional<std::string> tier, int cache_type,
                  const Sizes& sizes) {
  const Kernels& kernels = tier_named(tier ? tier->c_str() : nullptr);
  new (place) Program(kernels, static_cast<CacheType>(cache_type), sizes);
}

void pack(Program& program, int matrix, int output, int count, Vector<uint8_t> source) {
  const Matrix& m = program.matrix(matrix);
  require(
      source.size() == static_cast<size_t>(count * stored_row_bytes(m.format, m.group, m.inputs)),
      "the rows to pack have another size than their format says");
  nb::gil_scoped_release unlocked;
  program.pack(matrix, output, count, source.data());
}

Step step_of(const Vector<int32_t>& token_ids, const Vector<int32_t>& positions,
             const Vector<int32_t>& starts, const Table<int32_t>& block_tables,
             const Vector<int32_t>& rows, const Vector<int32_t>& hidden_rows) {
  require(token_ids.size() == positions.size(), "token_ids and positions differ in length");
  require(starts.size() == block_tables.shape(0) + 1, "starts and block_tables differ in length");
  return {static_cast<int>(block_tables.shape(0)),
          static_cast<int>(token_ids.size()),
          static_cast<int>(rows.size()),
          static_cast<int>(hidden_rows.size()),
          token_ids.data(),
          positions.data(),
          starts.data(),
          block_tables.data(),
          static_cast<int>(block_tables.shape(1)),
          rows.data(),
          hidden_rows.data(),
          nullptr};
}

float* logits_of(const Program& program, const Step& step,
                 const std::optional<OutTable<float>>& logits) {
  if (!logits) return nullptr;
  require(logits->shape(0) == static_cast<size_t>(step.wanted) &&
              logits->shape(1) == static_cast<size_t>(program.sizes().vocabulary),
          "logits must be (rows, vocabulary)");
  return logits->data();
}

void run(Program& program, Vector<int32_t> token_ids, Vector<int32_t> positions,
         Vector<int32_t> starts, Table<int32_t> block_tables, Vector<int32_t> rows,
         Vector<int32_t> hidden_rows, std::optional<OutTable<float>> logits) {
  Step step = step_of(token_ids, positions, starts, block_tables, rows, hidden_rows);
  float* out = logits_of(program, step, logits);
  nb::gil_scoped_release unlocked;
  program.run(step, nullptr, out);
}

void run_sampled(Program& program, Vector<int32_t> token_ids, Vector<int32_t> positions,
                 Vector<int32_t> starts, Table<int32_t> block_tables, Vector<int32_t> rows,
                 Vector<int32_t> hidden_rows, std::optional<OutTable<float>> logits,
                 Vector<float> temperature, Vector<int32_t> top_k, Vector<float> top_p,
                 Vector<float> min_p, Vector<float> repetition_penalty,
                 Vector<float> presence_penalty, Vector<float> frequency_penalty,
                 Vector<uint64_t> seed, Vector<uint32_t> choice, Vector<uint32_t> position,
                 Vector<int32_t> logprobs, Vector<int32_t> target, Vector<int32_t> adjusted_starts,
                 Vector<int32_t> adjusted_ids, Vector<float> adjusted_bias,
                 Vector<uint8_t> adjusted_seen, Vector<int32_t> adjusted_count,
                 OutVector<int32_t> tokens, OutVector<float> logprob, OutTable<int32_t> top_ids,
                 OutTable<float> top_logprobs, std::optional<MaskRows> mask_rows,
                 std::optional<Masks> masks) {
  Step step = step_of(token_ids, positions, starts, block_tables, rows, hidden_rows);
  float* out = logits_of(program, step, logits);
  const size_t count = rows.size(), entries = adjusted_ids.size();
  const int width = static_cast<int>(top_ids.shape(1));
  for (size_t size :
       {temperature.size(), top_k.size(), top_p.size(), min_p.size(), repetition_penalty.size(),
        presence_penalty.size(), frequency_penalty.size(), seed.size(), choice.size(),
        position.size(), logprobs.size(), target.size(), adjusted_starts.size() - 1, tokens.size(),
        logprob.size(), top_ids.shape(0), top_logprobs.shape(0)}) {
    require(size == count, "every sampling array needs one entry a wanted row");
  }
  for (size_t size : {adjusted_bias.size(), adjusted_seen.size(), adjusted_count.size()}) {
    require(size == entries, "the adjusted_* arrays differ in length");
  }
  require(top_logprobs.shape(1) == top_ids.shape(1), "top_ids and top_logprobs differ in width");
  SamplingView sampling{temperature.data(),
                        top_k.data(),
                        top_p.data(),
                        min_p.data(),
                        repetition_penalty.data(),
                        presence_penalty.data(),
                        frequency_penalty.data(),
                        seed.data(),
                        choice.data(),
                        position.data(),
                        logprobs.data(),
                        target.data(),
                        adjusted_starts.data(),
                        adjusted_ids.data(),
                        adjusted_bias.data(),
                        adjusted_seen.data(),
                        adjusted_count.data(),
                        nullptr,
                        nullptr};
  const int vocabulary = program.sizes().vocabulary;
  const int64_t given = set_masks(sampling, mask_rows, masks, count, vocabulary);
  check_sampling(sampling, step.wanted, static_cast<int64_t>(entries), given, vocabulary, width);
  step.sampling = &sampling;
  SampledRows sampled{tokens.data(), logprob.data(), top_ids.data(), top_logprobs.data(), width};
  nb::gil_scoped_release unlocked;
  program.run(step, &sampled, out);
}

// The formulas that plan/packed.py states too.
void bind_sizes_of(nb::module_& m) {
  m.def("matrix_bytes", [](int format, int64_t group, int64_t outputs, int64_t inputs) {
    return matrix_bytes(static_cast<Format>(format), group, outputs, inputs);
  });
  m.def("prepared_bytes", [](int mode, int64_t rows, int64_t inputs) {
    return prepared_bytes(static_cast<Mode>(mode), rows, inputs);
  });
  m.def("head_block_bytes", [](int cache_type, int64_t head_dim) {
    return head_block_bytes(static_cast<CacheType>(cache_type), head_dim);
  });
  m.def("partial_floats", &partial_floats);
  m.def("sample_scratch_bytes", &sample_scratch_bytes);
  m.attr("row_block") = kRowBlock;
  m.attr("private_rows") = kPrivateRows;
  m.attr("split_items") = kSplitItems;
  m.attr("query_tile") = kQueryTile;
}

void bind_sizes(nb::module_& m) {
  nb::class_<Sizes>(m, "Sizes")
      .def(nb::init<>())
      .def_rw("threads", &Sizes::threads)
      .def_rw("step_tokens", &Sizes::step_tokens)
      .def_rw("step_rows", &Sizes::step_rows)
      .def_rw("total_blocks", &Sizes::total_blocks)
      .def_rw("context_length", &Sizes::context_length)
      .def_rw("vocabulary", &Sizes::vocabulary)
      .def_rw("block_bytes", &Sizes::block_bytes)
      .def_rw("partial_rows", &Sizes::partial_rows)
      .def_rw("weights", &Sizes::weights)
      .def_rw("cache", &Sizes::cache)
      .def_rw("arena", &Sizes::arena)
      .def_rw("shared_prepared", &Sizes::shared_prepared)
      .def_rw("partials", &Sizes::partials)
      .def_rw("hidden", &Sizes::hidden)
      .def_rw("hidden_width", &Sizes::hidden_width)
      .def_rw("scratch", &Sizes::scratch)
      .def_rw("scratch_stride", &Sizes::scratch_stride)
      .def_rw("scratch_row", &Sizes::scratch_row)
      .def_rw("scratch_tile", &Sizes::scratch_tile)
      .def_rw("scratch_state", &Sizes::scratch_state)
      .def_rw("scratch_prepared", &Sizes::scratch_prepared)
      .def_rw("scratch_sampling", &Sizes::scratch_sampling);
}

// Builds a Program piece by piece; see backends/native.py, its only caller.
void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program")
      .def("__init__", &make_program, nb::arg("tier").none(), nb::arg("cache_type"),
           nb::arg("sizes"))
      .def_prop_ro("tier", [](const Program& p) { return p.kernels().name; })
      .def("value",
           [](Program& p, int64_t offset, int width, int stride, bool wanted, int mode,
              float fixed_scale) {
             return p.add_value({offset, width, stride, wanted, mode >= 0,
                                 mode >= 0 ? static_cast<Mode>(mode) : Mode::FP32, fixed_scale});
           })
      .def("vector",
           [](Program& p, int64_t offset, Vector<float> source) {
             return p.add_vector(offset, source.data(), static_cast<int>(source.size()));
           })
      .def("matrix",
           [](Program& p, int64_t offset, int format, int group, int outputs, int inputs) {
             return p.add_matrix(offset, static_cast<Format>(format), group, outputs, inputs);
           })
      .def("pack", &pack)
      .def("cache", [](Program& p, int kv_heads, int head_dim,
                       int64_t offset) { return p.add_cache({kv_heads, head_dim, offset}); })
      .def("rope", &Program::add_rope)
      .def("embed",
           [](Program& p, int table, float factor, int output) {
             p.add_stage(std::make_unique<EmbedStage>(table, factor, output), "embed");
           })
      .def("linear",
           [](Program& p, std::string label, SourceArguments source, ProductArguments product,
              int output, int residual) {
             p.add_stage(std::make_unique<LinearStage>(input_of(source), product_of(product),
                                                       output, residual),
                         std::move(label));
           })
      .def("gate",
           [](Program& p, SourceArguments source, ProductArguments gate, ProductArguments up,
              bool gelu, int output) {
             auto activation = gelu ? GateStage::Activation::Gelu : GateStage::Activation::Silu;
             p.add_stage(std::make_unique<GateStage>(input_of(source), product_of(gate),
                                                     product_of(up), activation, output),
                         "gate");
           })
      .def("heads",
           [](Program& p, SourceArguments source, HeadArguments query, HeadArguments key,
              HeadArguments value, int layer, int output) {
             p.add_stage(
                 std::make_unique<HeadsStage>(input_of(source), heads_of(query), heads_of(key),
                                              heads_of(value), layer, output),
                 "heads");
           })
      .def("attend",
           [](Program& p, int query, int key, int value, int output, int layer, int heads,
              float scale, int window) {
             p.add_stage(std::make_unique<AttendStage>(query, key, value, output, layer, heads,
                                                       scale, window),
                         "attend");
           })
      .def(
          "row",
          [](Program& p, int kind, std::string label, int a, int b, int output, int gain,
             int gain_count, int rope, int head_dim, float number, std::vector<int> columns) {
            auto spreads = static_cast<RowStage::Kind>(kind) == RowStage::Kind::Spread;
            require(!spreads || columns.size() <= static_cast<size_t>(p.value(a).width),
                    "more columns than there are numbers to spread");
            for (int column : columns) {
              require(column >= 0 && column < p.value(spreads ? output : a).width,
                      "a row has no such column");
            }
            RowStage::Operands operands{
                a, b, output, gain, rope, head_dim, number, gain_count, std::move(columns)};
            p.add_stage(
                std::make_unique<RowStage>(static_cast<RowStage::Kind>(kind), std::move(operands)),
                std::move(label));
          },
          nb::arg("kind"), nb::arg("label"), nb::kw_only(), nb::arg("a"), nb::arg("b"),
          nb::arg("output"), nb::arg("gain"), nb::arg("gain_count"), nb::arg("rope"),
          nb::arg("head_dim"), nb::arg("number"), nb::arg("columns"))
      .def("logits", &Program::set_logits)
      .def("run", &run, nb::arg("token_ids"), nb::arg("positions"), nb::arg("starts"),
           nb::arg("block_tables"), nb::arg("rows"), nb::arg("hidden_rows"),
           nb::arg("logits").none())
      .def("run_sampled", &run_sampled, nb::arg("token_ids"), nb::arg("positions"),
           nb::arg("starts"), nb::arg("block_tables"), nb::arg("rows"), nb::arg("hidden_rows"),
           nb::arg("logits").none(), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
           nb::arg("min_p"), nb::arg("repetition_penalty"), nb::arg("presence_penalty"),
           nb::arg("frequency_penalty"), nb::arg("seed"), nb::arg("choice"), nb::arg("position"),
           nb::arg("logprobs"), nb::arg("target"), nb::arg("adjusted_starts"),
           nb::arg("adjusted_ids"), nb::arg("adjusted_bias"), nb::arg("adjusted_seen"),
           nb::arg("adjusted_count"), nb::arg("tokens"), nb::arg("logprob"), nb::arg("top_ids"),
           nb::arg("top_logprobs"), nb::arg("mask_rows") = nb::none(),
           nb::arg("masks") = nb::none())
      .def("reverse_merges", &Program::reverse_merges)
      .def("profile", &Program::profile)
      .def("stage_labels", &Program::stage_labels)
      .def("stage_seconds", &Program::stage_seconds)
      .def("hidden",
           [](Program& p) {
             return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(
                 p.hidden_data(),
                 {static_cast<size_t>(p.sizes().step_tokens),
                  static_cast<size_t>(p.sizes().hidden_width)},
                 nb::find(&p));
           })
      .def("rows_of",
           [](Program& p, int value) {
             const Value& v = p.value(value);
             return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(
                 p.value_data(value),
                 {static_cast<size_t>(p.value_rows(value)), static_cast<size_t>(v.width)},
                 nb::find(&p), {v.stride, 1});
           })
      .def("cache_bytes",
           [](Program& p) {
             return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(
                 p.cache_data(), {static_cast<size_t>(p.sizes().cache)}, nb::find(&p));
           })
      .def("weight_bytes", [](Program& p) {
        return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(
            p.weight_data(), {static_cast<size_t>(p.sizes().weights)}, nb::find(&p));
      });
}

}  // namespace
}  // namespace farthing

NB_MODULE(_native, m) {
  using namespace farthing;
  bind_sizes(m);
  bind_program(m);
  m.def("available_tiers", [] {
    const char* names[8];
    int count = available_tiers(names, 8);
    return std::vector<std::string>(names, names + count);
  });
  m.attr("kernel_version") = kernel_version;
  nb::module_ sizes = m.def_submodule("sizes");
  bind_sizes_of(sizes);
  nb::module_ kernels = m.def_submodule("kernels");
  bind_kernels(kernels);
  bind_attention(kernels);
  bind_sampler(kernels);
  bind_ceilings(m, kernels);
}
