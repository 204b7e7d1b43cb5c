// The contract between the executor and the instruction-set tiers.
//
// Every tier (native/isa/*.cpp) compiles the same bodies (native/kernels/*.inl) in a namespace of
// its own and exports one `Kernels` table; dispatch.cpp chooses one at start. Nothing here may
// depend on how work is split: each output is a function of its own inputs alone, summed in one
// fixed order, so that a result is the same bits for any number of rows, tiles, threads or chunks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats.h"

namespace farthing {

constexpr int kBlock = 32;   // token positions in a block of the cache
constexpr int kChunk = 256;  // positions whose attention is summed as one unit

enum class CacheType : int32_t { FP32, FP16, BF16, INT8, INT4_KEYS };

// One KV head's part of a block, of the cache's element type: keys [head_dim][32 positions], then
// values [32][head_dim]. BF16 keeps pairs, for dot products: keys [head_dim / 2][32][2], values
// [16][head_dim][2], so that head_dim is even. INT8 adds [32] fp32 key scales and [32] fp32 value
// scales. INT4_KEYS has keys [head_dim / 2][32] bytes, of which the lower half is the even
// dimension, and values and scales as INT8, but for the key scales, which are fp16; its keys and
// queries are rotated (kernels/rotate.inl), so that head_dim is a power of two.
constexpr int64_t head_block_bytes(CacheType type, int64_t head_dim) {
  if (type == CacheType::INT4_KEYS) {
    return round_up(kBlock * head_dim / 2 + kBlock * head_dim + kBlock * (2 + 4), 64);
  }
  int64_t element = type == CacheType::FP32 ? 4 : type == CacheType::INT8 ? 1 : 2;
  int64_t scales = type == CacheType::INT8 ? 2 * kBlock * 4 : 0;
  return round_up(2 * kBlock * head_dim * element + scales, 64);
}

constexpr int kMostRotated = 1024;  // dimensions of a head

// Whether a cache can hold heads of so many dimensions.
constexpr bool holds_heads(CacheType type, int64_t head_dim) {
  if (type == CacheType::BF16) return head_dim % 2 == 0;
  if (type != CacheType::INT4_KEYS) return true;
  return 2 <= head_dim && head_dim <= kMostRotated && (head_dim & (head_dim - 1)) == 0;
}

// The queries of one sequence that share one KV head: `queries` consecutive tokens, `group` heads
// each, so queries * group rows, row = query * group + head.
struct Attention {
  CacheType type;
  int32_t head_dim;
  int32_t group;
  int32_t queries;
  int32_t first_position;  // of the first query; query i stands at first_position + i
  int32_t window;          // latest positions attended to, the query's own included; 0: all
  float scale;
  const float* query;  // head h of query i at query + i * query_stride + h * head_dim
  int64_t query_stride;
  const uint8_t* pool;         // this layer and KV head in block 0
  int64_t block_stride;        // bytes from one block to the next
  const int32_t* block_table;  // entry i holds positions 32 i ... 32 i + 31
  // Another pool and the blocks of it that are read after the last chunk: a hint, to fetch them.
  const uint8_t* next_pool;
  const int32_t* next_table;
  int32_t next_blocks;  // 0: unknown
};

constexpr int kQueryTile = 8;  // most queries in one Attention

// What one chunk of 256 positions adds to one row, unnormalised:
//   [0, head_dim) the weighted sums of values, [head_dim] the sum of weights, exp(score - largest),
//   [head_dim + 1] the largest score times log2(e). A row that sees nothing of the chunk has sum 0,
//   and merging it changes no bit.
constexpr int64_t partial_floats(int64_t head_dim) { return round_up(head_dim + 2, kTile); }

// Gumbel noise of a token: a function of these four and the token id alone.
struct NoiseKey {
  uint64_t seed;
  uint32_t choice;
  uint32_t position;
};

constexpr int kNoiseTile = 64;  // most tokens in one call of `gumbel`
constexpr int kReadTurn = 512;  // bytes that `read_all` takes at a time

struct Kernels {
  const char* name;

  // --- matrices (kernels/pack.inl, kernels/linear.inl)
  // Packs tiles [tile, tile_end) of a matrix, losslessly, from all its rows as they are stored in
  // the same format; `packed` is where the matrix's data is.
  void (*pack)(const Matrix& matrix, const uint8_t* source, int tile, int tile_end,
               uint8_t* packed);
  // Decodes one output's row of weights: out[inputs].
  void (*unpack_row)(const Matrix& matrix, int output, float* out);
  // Prepares `count` columns from `column` (a multiple of 32) on of rows [row, row_end), which lie
  // `stride` apart in x. count is a multiple of 32, or reaches the unpadded end of the rows, where
  // the padding is then zeroed.
  void (*prepare)(const Prepared& prepared, int row, int row_end, int column, const float* x,
                  int64_t stride, int count);
  // out[(row - first) * stride + (tile - tile_first) * 16 + n] for the given rows and tiles.
  // `out` has room for whole tiles. x.mode is mode_of(matrix.format).
  void (*linear)(const Matrix& matrix, const Prepared& x, int row, int row_end, int tile,
                 int tile_end, float* out, int64_t stride);

  // --- rows (kernels/rows.inl); out may be one of the inputs
  void (*rmsnorm)(const float* x, const float* gain, float epsilon, int count, float* out);
  void (*add)(const float* a, const float* b, int count, float* out);
  void (*scale)(const float* x, float factor, int count, float* out);
  void (*swiglu)(const float* gate, const float* up, int count, float* out);
  void (*geglu)(const float* gate, const float* up, int count, float* out);

  // --- attention (kernels/attend.inl)
  // cos and sin of position * frequency, computed in float64 and rounded.
  void (*angles)(int32_t position, const double* frequencies, int count, float* cosine,
                 float* sine);
  // Rotates x[i] with x[i + count], in place.
  void (*rope)(float* x, const float* cosine, const float* sine, int count);
  // Stores one token's key and value in its slot (0 ... 31) of a head's block.
  void (*cache_write)(CacheType type, int head_dim, uint8_t* head_block, int slot, const float* key,
                      const float* value);
  // partial[row * partial_floats(head_dim)] for every row, from positions of `chunk` alone.
  void (*attend_chunk)(const Attention& attention, int chunk, float* partial);
  // state := state merged with the next chunk's partial, for `rows` rows.
  void (*attend_merge)(float* state, const float* partial, int rows, int head_dim);
  // out[head_dim] of one row: weighted sums divided by the sum of weights.
  void (*attend_finish)(const float* state, int head_dim, float* out);

  // --- sampling (kernels/sample.inl): the same bits in every tier
  // Index of the largest element, the lowest on ties; NaN is never chosen (-1 if nothing else).
  int (*argmax)(const float* x, int count);
  // Sum of exp(x[i] - shift) in float64 and in one fixed order; an element equal to `shift` counts
  // 1 even where both are infinite, NaN counts 0.
  double (*sum_exp)(const float* x, int count, float shift);
  // noise[i] = Gumbel noise of token first_id + i for up to kNoiseTile tokens; first_id is a
  // multiple of 4. Returns false, with nothing written, if it can tell cheaply that all are below
  // `least`.
  bool (*gumbel)(const NoiseKey& key, uint32_t first_id, int count, float least, float* noise);

  // --- ceilings (kernels/ceilings.inl): no part of a step
  // Loads `bytes` (whole kReadTurns) and adds them up, fetching `ahead` bytes ahead unless 0.
  int32_t (*read_all)(const uint8_t* data, int64_t bytes, int64_t ahead);
  // Products of a mode as fast as they issue; returns how many multiply-accumulates that were.
  int64_t (*multiply)(Mode mode, int64_t rounds);
};

// The table of the best tier this machine runs, or of the one FARTHING_ISA names. Null with
// `*problem` set when that one is unknown or cannot run here.
const Kernels* choose_kernels(const char* wanted, const char** problem);

// Names of the tiers this machine can run, slowest first; returns how many were written.
int available_tiers(const char** names, int capacity);

namespace scalar {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace neon_dotprod {
extern const Kernels kernels;
}
namespace neon_i8mm {
extern const Kernels kernels;
}

}  // namespace farthing
