#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace farthing {
namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

}  // namespace

Program::Program(const Kernels& kernels, CacheType cache_type, const Sizes& sizes)
    : kernels_(kernels),
      cache_type_(cache_type),
      sizes_(sizes),
      team_(sizes.threads),
      weights_(sizes.weights),
      cache_(sizes.cache),
      arena_(sizes.arena),
      chunks_done_(std::make_unique<std::atomic<int>[]>(kSplitItems * sizes.threads)) {
  for (int i = 0; i < kSplitItems * sizes.threads; ++i) chunks_done_[i] = 0;
  query_tiles_.reserve(sizes.step_tokens);
  token_sequence_.resize(sizes.step_tokens);
}

int Program::add_value(const Value& value) {
  values_.push_back(value);
  return static_cast<int>(values_.size()) - 1;
}

int Program::add_vector(int64_t offset, const float* source, int count) {
  require(offset >= 0 && offset + count * 4 <= sizes_.weights, "a vector lies outside the weights");
  float* place = reinterpret_cast<float*>(weights_.data() + offset);
  std::memcpy(place, source, sizeof(float) * count);
  vectors_.push_back(place);
  return static_cast<int>(vectors_.size()) - 1;
}

int Program::add_matrix(int64_t offset, Format format, int group, int outputs, int inputs) {
  const Matrix matrix{format, group, outputs, inputs, weights_.data() + offset};
  require(has_group(matrix), "a matrix has a group that its format does not know");
  require(offset >= 0 && offset + matrix_bytes(format, group, outputs, inputs) <= sizes_.weights,
          "a matrix lies outside the weights");
  matrices_.push_back(matrix);
  return static_cast<int>(matrices_.size()) - 1;
}

void Program::pack(int matrix, int output, int count, const uint8_t* source) {
  const Matrix& m = matrices_.at(matrix);
  require(output % kTile == 0 && count > 0 && output + count <= m.outputs,
          "rows to pack lie outside the matrix");
  const int64_t bytes = tile_bytes(m.format, m.group, m.inputs);
  uint8_t* packed = weights_.data() + (m.data - weights_.data()) + output / kTile * bytes;
  const Matrix rows{m.format, m.group, count, m.inputs, packed};
  team_.split(rows.tiles(), [&](int64_t tile, int64_t tile_end) {
    kernels_.pack(rows, source, static_cast<int>(tile), static_cast<int>(tile_end), packed);
  });
}

int Program::add_cache(const Cache& cache) {
  require(holds_heads(cache_type_, cache.head_dim), "the cache cannot hold heads of this size");
  caches_.push_back(cache);
  return static_cast<int>(caches_.size()) - 1;
}

int Program::add_rope(const std::vector<double>& frequencies, int64_t offset) {
  ropes_.push_back({frequencies, offset});
  return static_cast<int>(ropes_.size()) - 1;
}

void Program::add_stage(std::unique_ptr<Stage> stage, std::string label) {
  stages_.push_back(std::move(stage));
  labels_.push_back(std::move(label));
}

void Program::profile(bool on) {
  profiling_ = on;
  stage_seconds_.assign(stages_.size() + 1, 0.0);
}

void Program::start_phases() {
  if (phases_ == nullptr) {
    int count = 0;
    for (const auto& stage : stages_) {
      first_phase_.push_back(count);
      count += stage->phases();
    }
    first_phase_.push_back(count);
    phases_ = std::make_unique<Phases>(count + 1, sizes_.threads);
  }
  phases_->reset();
}

void Program::validate(const Step& step) const {
  require(step.tokens > 0 && step.tokens <= sizes_.step_tokens, "too many tokens in a step");
  require(step.wanted >= 0 && step.wanted <= sizes_.step_rows, "too many wanted rows in a step");
  require(step.sequences > 0 && step.starts[0] == 0 && step.starts[step.sequences] == step.tokens,
          "sequence spans do not cover the step's tokens");
  for (int s = 0; s < step.sequences; ++s) {
    const int begin = step.starts[s], end = step.starts[s + 1];
    require(begin < end && end <= step.tokens, "sequence spans must ascend");
    const int first = step.positions[begin];
    const int last = first + (end - begin - 1);
    require(first >= 0 && last < sizes_.context_length, "a position lies outside the context");
    require(last / kBlock < step.table_width, "a block table is too short");
    for (int t = begin; t < end; ++t) {
      require(step.positions[t] == first + (t - begin), "positions must be consecutive");
    }
    const int32_t* table = step.block_tables + static_cast<int64_t>(s) * step.table_width;
    for (int b = 0; b <= last / kBlock; ++b) {
      require(table[b] >= 0 && table[b] < sizes_.total_blocks, "no such block");
    }
  }
  for (int t = 0; t < step.tokens; ++t) {
    require(step.token_ids[t] >= 0 && step.token_ids[t] < sizes_.vocabulary, "no such token id");
  }
  for (int r = 0; r < step.wanted; ++r) {
    require(step.rows[r] >= 0 && step.rows[r] < step.tokens, "a wanted row is no token");
  }
  require(step.hidden <= step.tokens, "more hidden states than tokens in a step");
  require(step.hidden == 0 || sizes_.hidden_width > 0, "the model gives no hidden states");
  for (int h = 0; h < step.hidden; ++h) {
    require(step.hidden_rows[h] >= 0 && step.hidden_rows[h] < step.tokens,
            "a hidden state is of no token");
  }
}

void Program::index_tokens(const Step& step) {
  query_tiles_.clear();
  for (int s = 0; s < step.sequences; ++s) {
    for (int t = step.starts[s]; t < step.starts[s + 1]; ++t) token_sequence_[t] = s;
    for (int t = step.starts[s]; t < step.starts[s + 1]; t += kQueryTile) {
      query_tiles_.push_back({s, t, std::min(kQueryTile, step.starts[s + 1] - t)});
    }
  }
}

void Program::run(const Step& step, const SampledRows* sampled, float* logits) {
  validate(step);
  index_tokens(step);
  start_phases();
  team_.offer([&](int thread) { work(thread, step, sampled); });
  last_tokens_ = step.tokens;
  last_wanted_ = step.wanted;
  if (logits == nullptr) return;
  const Value& value = values_[logits_];
  for (int row = 0; row < step.wanted; ++row) {
    std::memcpy(logits + static_cast<int64_t>(row) * value.width,
                arena_.data() + value.offset + int64_t{4} * row * value.stride,
                sizeof(float) * value.width);
  }
}

void Program::work(int thread, const Step& step, const SampledRows* sampled) {
  Worker worker(*this, team_, *phases_, step, thread);
  const bool timing = profiling_ && thread == 0;
  double before = timing ? seconds() : 0.0;
  auto lap = [&](size_t stage) {
    if (!timing) return;
    double now = seconds();
    stage_seconds_[stage] += now - before;
    before = now;
  };
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (worker.begin(first_phase_[i], first_phase_[i + 1])) stages_[i]->run(worker);
    lap(i);
  }
  if (sampled != nullptr) {
    worker.begin(first_phase_.back(), first_phase_.back() + 1);
    sample(worker, *sampled);
    lap(stages_.size());
  }
}

void Program::sample(Worker& worker, const SampledRows& sampled) const {
  const Value& logits = values_[logits_];
  worker.each(worker.step.wanted, [&](int row) {
    const int64_t top = static_cast<int64_t>(row) * sampled.width;
    sample_row(kernels_, worker.row(logits_, row), logits.width, *worker.step.sampling, row,
               worker.scratch_sampling(), sampled.tokens + row, sampled.logprob + row,
               sampled.top_ids + top, sampled.top_logprobs + top, sampled.width);
  });
}

Worker::Worker(const Program& program, Team& team, Phases& phases, const Step& step, int thread)
    : program(program),
      kernels(program.kernels_),
      step(step),
      thread(thread),
      scratch_(program.arena_.data() + program.sizes_.scratch +
               thread * program.sizes_.scratch_stride),
      team_(team),
      phases_(phases) {}

int Worker::rows(int value) const {
  return program.values_[value].wanted ? step.wanted : step.tokens;
}

float* Worker::row(int value, int row) const {
  const Value& v = program.values_[value];
  return reinterpret_cast<float*>(program.arena_.data() + v.offset) +
         static_cast<int64_t>(row) * v.stride;
}

Prepared Worker::prepared(int value) const {
  const Value& v = program.values_[value];
  const int most = v.wanted ? program.sizes_.step_rows : program.sizes_.step_tokens;
  Prepared prepared = lay_prepared(v.mode, most, v.width, program.arena_.data() + v.offset);
  prepared.fixed_scale = v.fixed_scale;
  return prepared;
}

Prepared Worker::private_prepared(Mode mode, int inputs) const {
  return lay_prepared(mode, kPrivateRows, inputs,
                      scratch_ + program.sizes_.scratch_prepared[static_cast<int>(mode)]);
}

Prepared Worker::shared_prepared(Mode mode, int inputs) const {
  const int most = std::max(program.sizes_.step_tokens, program.sizes_.step_rows);
  return lay_prepared(
      mode, most, inputs,
      program.arena_.data() + program.sizes_.shared_prepared[static_cast<int>(mode)]);
}

float* Worker::cosines(int rope, int token) const {
  const Rope& r = program.ropes_[rope];
  return reinterpret_cast<float*>(program.arena_.data() + r.offset) +
         static_cast<int64_t>(token) * r.count();
}

float* Worker::sines(int rope, int token) const {
  const Rope& r = program.ropes_[rope];
  return cosines(rope, token) + static_cast<int64_t>(program.sizes_.step_tokens) * r.count();
}

uint8_t* Worker::token_block(int layer, int token) const {
  const int64_t sequence = program.token_sequence_[token];
  const int32_t* table = step.block_tables + sequence * step.table_width;
  return program.cache_.data() +
         table[step.positions[token] / kBlock] * program.sizes_.block_bytes +
         program.caches_[layer].offset;
}

float* Worker::partials() const {
  return reinterpret_cast<float*>(program.arena_.data() + program.sizes_.partials);
}

}  // namespace farthing
