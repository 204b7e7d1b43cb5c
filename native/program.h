// The executor: one model's stages over one packed set of weights, one paged cache and one arena.
//
// Python builds it once (weights packed, stages appended in order), then calls `run` with each
// step's flat arrays. All addresses come from plan/memory.py: nothing is allocated while it runs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "platform.h"
#include "sampler.h"
#include "team.h"

namespace farthing {

// One step: S sequences, T tokens, R wanted rows, H hidden states; the fields are core.StepPlan's.
struct Step {
  int sequences;
  int tokens;
  int wanted;
  int hidden;
  const int32_t* token_ids;     // [T]
  const int32_t* positions;     // [T]
  const int32_t* starts;        // [S + 1]
  const int32_t* block_tables;  // [S][table_width]
  int table_width;
  const int32_t* rows;           // [R]
  const int32_t* hidden_rows;    // [H]
  const SamplingView* sampling;  // null: logits only
};

struct SampledRows {  // [R], [R], [R][width], [R][width]
  int32_t* tokens;
  float* logprob;
  int32_t* top_ids;
  float* top_logprobs;
  int width;
};

// Where a value lives in the arena: rows of `stride` floats, or prepared rows of `mode`.
struct Value {
  int64_t offset;
  int32_t width;
  int32_t stride;
  bool wanted;  // one row per wanted row instead of one per token
  bool is_prepared;
  Mode mode;  // of prepared rows
  float fixed_scale;
};

struct Sizes {
  int threads;
  int step_tokens;  // most tokens in a step
  int step_rows;    // most wanted rows in a step
  int total_blocks;
  int context_length;
  int vocabulary;
  int64_t block_bytes;
  int64_t partial_rows;           // rows of attention partials for a split over chunks
  int64_t weights, cache, arena;  // bytes
  // In the arena: prepared inputs of all rows, a region for each Mode; partials of attention.
  std::array<int64_t, 3> shared_prepared;
  int64_t partials;
  int64_t hidden;  // in the arena: hidden states, [step_tokens][hidden_width]
  int hidden_width;
  // In the arena: one region of `scratch_stride` bytes a thread, and what lies where in it.
  int64_t scratch, scratch_stride;
  int64_t scratch_row;                  // one row of the widest value
  std::array<int64_t, 2> scratch_tile;  // kRowBlock rows of the widest unit each
  int64_t scratch_state;  // attention: a state and a partial of kQueryTile queries each
  std::array<int64_t, 3> scratch_prepared;  // kPrivateRows prepared rows, a region for each Mode
  int64_t scratch_sampling;
};

struct Cache {  // one layer's share of a block
  int32_t kv_heads;
  int32_t head_dim;
  int64_t offset;  // of KV head 0 within the block
};

struct Rope {
  std::vector<double> frequencies;
  int64_t offset;  // in the arena: cosines [step_tokens][count], then sines
  int count() const { return static_cast<int>(frequencies.size()); }
};

// Up to kQueryTile consecutive tokens of one sequence, attended to together.
struct QueryTile {
  int32_t sequence;
  int32_t token;
  int32_t queries;
};

// A split of attention over chunks serves at most so many (tile, KV head) pairs a thread.
constexpr int kSplitItems = 4;

class Worker;

// What every thread of the team executes. Outside the items that Worker::each deals out, a stage
// may write to its own thread's scratch only, and what it reads there may be overwritten meanwhile
// by a later stage if the others have done all items without it: then it is given none.
class Stage {
 public:
  virtual ~Stage() = default;
  virtual void run(Worker& worker) const = 0;
  virtual int phases() const { return 2; }  // most calls of Worker::each in one run
};

class Program {
 public:
  Program(const Kernels& kernels, CacheType cache_type, const Sizes& sizes);

  // --- building
  int add_value(const Value& value);
  int add_vector(int64_t offset, const float* source, int count);  // copied into the weights
  int add_matrix(int64_t offset, Format format, int group, int outputs, int inputs);
  // Packs rows [output, output + count) of a matrix; output is a multiple of 16.
  void pack(int matrix, int output, int count, const uint8_t* source);
  int add_cache(const Cache& cache);
  int add_rope(const std::vector<double>& frequencies, int64_t offset);
  void add_stage(std::unique_ptr<Stage> stage, std::string label);
  void set_logits(int value) { logits_ = value; }
  const Matrix& matrix(int index) const { return matrices_.at(index); }

  // --- running; throws std::invalid_argument on a step that does not fit the model or the sizes
  void run(const Step& step, const SampledRows* sampled, float* logits);
  void reverse_merges(bool reverse) { reverse_merges_ = reverse; }
  // Seconds spent in each stage since profiling was last switched on; labels by index.
  void profile(bool on);
  const std::vector<double>& stage_seconds() const { return stage_seconds_; }
  const std::vector<std::string>& stage_labels() const { return labels_; }

  // Hidden states of the last step's `hidden_rows`, [H][hidden_width].
  float* hidden_data() const { return reinterpret_cast<float*>(arena_.data() + sizes_.hidden); }
  // The last step's rows of a value that is not stored prepared, `stride` apart; their number.
  const Value& value(int index) const { return values_.at(index); }
  const float* value_data(int index) const {
    return reinterpret_cast<const float*>(arena_.data() + value(index).offset);
  }
  int value_rows(int index) const { return value(index).wanted ? last_wanted_ : last_tokens_; }
  uint8_t* cache_data() const { return cache_.data(); }
  const uint8_t* weight_data() const { return weights_.data(); }
  const Sizes& sizes() const { return sizes_; }
  const Kernels& kernels() const { return kernels_; }

 private:
  friend class Worker;
  void validate(const Step& step) const;
  void index_tokens(const Step& step);
  void work(int thread, const Step& step, const SampledRows* sampled);
  void sample(Worker& worker, const SampledRows& sampled) const;
  void start_phases();

  const Kernels& kernels_;
  const CacheType cache_type_;
  const Sizes sizes_;
  Team team_;
  Pages weights_;
  Pages cache_;
  Pages arena_;
  std::vector<Value> values_;
  std::vector<const float*> vectors_;
  std::vector<Matrix> matrices_;
  std::vector<Cache> caches_;
  std::vector<Rope> ropes_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<std::string> labels_;
  std::unique_ptr<Phases> phases_;
  std::vector<int> first_phase_;                     // of each stage, then of sampling
  std::unique_ptr<std::atomic<int>[]> chunks_done_;  // by split item, zero between stages
  std::vector<QueryTile> query_tiles_;               // of this step
  std::vector<int32_t> token_sequence_;              // of this step
  int logits_ = -1;
  int last_tokens_ = 0, last_wanted_ = 0;  // of the last step
  bool reverse_merges_ = false;
  bool profiling_ = false;
  std::vector<double> stage_seconds_;
};

// One thread's view of a step.
class Worker {
 public:
  Worker(const Program& program, Team& team, Phases& phases, const Step& step, int thread);

  const Program& program;
  const Kernels& kernels;
  const Step& step;
  const int thread;

  // Before a stage, whose phases are [first, next). False if nothing of it is left to do.
  bool begin(int first, int next) {
    phase_ = waited_ = first;
    return !phases_.passed(next);
  }
  // Runs body(item) for every item, over the whole team; `barrier` must follow before results are
  // read by another phase.
  template <class Body>
  void each(int items, Body&& body) {
    phases_.each(phase_++, thread, items, body);
  }
  // Returns when all items dealt out in this stage are done.
  void barrier() {
    while (waited_ < phase_) phases_.wait(waited_++);
  }
  int threads() const { return team_.threads(); }

  int rows(int value) const;  // of this step
  float* row(int value, int row) const;
  const Value& value(int index) const { return program.values_[index]; }
  Prepared prepared(int value) const;  // a value stored prepared
  const Matrix& matrix(int index) const { return program.matrices_[index]; }
  const float* vector(int index) const { return program.vectors_[index]; }
  const Cache& cache(int layer) const { return program.caches_[layer]; }
  CacheType cache_type() const { return program.cache_type_; }
  bool reverse_merges() const { return program.reverse_merges_; }
  const Rope& rope(int index) const { return program.ropes_[index]; }
  int rope_count() const { return static_cast<int>(program.ropes_.size()); }
  float* cosines(int rope, int token) const;
  float* sines(int rope, int token) const;
  // Layer's first KV head in the block that holds the token, and the token's slot there.
  uint8_t* token_block(int layer, int token) const;
  int token_slot(int token) const { return step.positions[token] % kBlock; }
  float* partials() const;
  std::atomic<int>& chunks_done(int item) const { return program.chunks_done_[item]; }
  const std::vector<QueryTile>& query_tiles() const { return program.query_tiles_; }

  // Parts of this thread's scratch, as Sizes lays them.
  float* scratch_row() const { return floats(program.sizes_.scratch_row); }
  float* scratch_tile(int which) const { return floats(program.sizes_.scratch_tile[which]); }
  float* scratch_state() const { return floats(program.sizes_.scratch_state); }
  uint8_t* scratch_sampling() const { return scratch_ + program.sizes_.scratch_sampling; }
  Prepared private_prepared(Mode mode, int inputs) const;
  Prepared shared_prepared(Mode mode, int inputs) const;

 private:
  float* floats(int64_t offset) const { return reinterpret_cast<float*>(scratch_ + offset); }

  uint8_t* const scratch_;
  Team& team_;
  Phases& phases_;
  int phase_ = 0, waited_ = 0;
};

constexpr int kRowBlock = 128;   // rows that one work item takes of a product
constexpr int kPrivateRows = 4;  // up to so many rows, every thread prepares its own input

}  // namespace farthing
