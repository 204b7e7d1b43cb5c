// The contract between the executor and the instruction-set tiers.
//
// Every tier (native/isa/*.cpp) compiles the same bodies (native/kernels/*.inl) in a namespace of
// its own and exports one `Kernels` table; dispatch.cpp chooses one at start. Nothing here may
// depend on how work is split: each output is a function of its own inputs alone, summed in one
// fixed order, so that a result is the same bits for any number of rows, tiles, threads or chunks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farthing {

constexpr int kTile = 16;    // outputs in one tile of a packed matrix
constexpr int kGroup = 32;   // inputs that share one weight scale and one activation scale
constexpr int kBlock = 32;   // token positions in a block of the cache
constexpr int kChunk = 256;  // positions whose attention is summed as one unit

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The numbers are the ones that backends/native.py passes.
enum class Format : int32_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 };
enum class Mode : int32_t { FP32, BF16, INT8 };  // what a product's activations are rounded to
enum class CacheType : int32_t { FP32, FP16, BF16, INT8 };

// A weight matrix in tiles of 16 outputs; inputs are padded with zeros to whole groups, outputs to
// whole tiles. One tile is contiguous, its parts in this order, the tile padded to 64 bytes:
//   F32, F16   [inputs][16 outputs]
//   BF16       [inputs / 2][16 outputs][2]
//   Q8_0       [groups][8 quads][16 outputs][4] codes + 128, then [groups][16] fp16 scales
//   Q4_*       [groups][4 quads][16 outputs][4] bytes: low nibble input 4 j + b, high 16 + 4 j + b;
//              then [groups][16] fp16 scales, then for Q4_1 [groups][16] fp16 minima
//   Q5_*       as Q4_*, each group's 256 bytes followed by [4 quads][low, high] 64-bit masks that
//              hold the fifth bits, bit n * 4 + b for output n
struct Matrix {
  Format format;
  int32_t outputs;
  int32_t inputs;
  const uint8_t* data;

  int tiles() const { return (outputs + kTile - 1) / kTile; }
  int groups() const { return (inputs + kGroup - 1) / kGroup; }
};

// Bytes of one group's codes of one tile, without scales.
constexpr int64_t code_bytes(Format format) {
  switch (format) {
    case Format::F32:
      return kGroup * kTile * 4;
    case Format::F16:
    case Format::BF16:
      return kGroup * kTile * 2;
    case Format::Q8_0:
      return kGroup * kTile;
    case Format::Q4_0:
    case Format::Q4_1:
      return kGroup * kTile / 2;
    case Format::Q5_0:
    case Format::Q5_1:
      return kGroup * kTile / 2 + kGroup * kTile / 8;
  }
  return 0;
}

// fp16 numbers per group and output: none, a scale, or a scale and a minimum.
constexpr int scale_planes(Format format) {
  switch (format) {
    case Format::Q8_0:
    case Format::Q4_0:
    case Format::Q5_0:
      return 1;
    case Format::Q4_1:
    case Format::Q5_1:
      return 2;
    default:
      return 0;
  }
}

constexpr int64_t tile_bytes(Format format, int64_t inputs) {
  int64_t groups = (inputs + kGroup - 1) / kGroup;
  return round_up(groups * (code_bytes(format) + scale_planes(format) * kTile * 2), 64);
}

constexpr int64_t matrix_bytes(Format format, int64_t outputs, int64_t inputs) {
  return (outputs + kTile - 1) / kTile * tile_bytes(format, inputs);
}

// Bytes of a row of `inputs` weights as a file stores them.
constexpr int64_t stored_row_bytes(Format format, int64_t inputs) {
  switch (format) {
    case Format::F32:
      return inputs * 4;
    case Format::F16:
    case Format::BF16:
      return inputs * 2;
    default:  // blocks of fp16 scales and codes
      return (inputs + kGroup - 1) / kGroup *
             (scale_planes(format) * 2 + code_bytes(format) / kTile);
  }
}

// Rows of activations in the form that a product takes. `inputs` is padded to whole groups, the
// padding is zero. INT8: code = round(x / scale), scale = max|x| / 127 over each group (0 for a
// group of zeros), `sum` the codes' sum, `scaled_sum` = scale * sum.
struct Prepared {
  Mode mode;
  int32_t inputs;     // padded
  uint8_t* data;      // [rows][inputs] of float, bf16 or int8
  float* scale;       // [rows][groups], INT8 only
  float* scaled_sum;  // [rows][groups], INT8 only
  int32_t* sum;       // [rows][groups], INT8 only

  int groups() const { return inputs / kGroup; }
};

constexpr int64_t mode_bytes(Mode mode) {
  return mode == Mode::FP32 ? 4 : mode == Mode::BF16 ? 2 : 1;
}

// Bytes of `rows` prepared rows; every part starts on 64 bytes.
constexpr int64_t prepared_bytes(Mode mode, int64_t rows, int64_t inputs) {
  int64_t padded = round_up(inputs, kGroup);
  int64_t bytes = round_up(rows * padded * mode_bytes(mode), 64);
  if (mode == Mode::INT8) bytes += 3 * round_up(rows * (padded / kGroup) * 4, 64);
  return bytes;
}

// Lays a Prepared over `memory`, which holds prepared_bytes(mode, rows, inputs).
inline Prepared lay_prepared(Mode mode, int64_t rows, int64_t inputs, uint8_t* memory) {
  int64_t padded = round_up(inputs, kGroup);
  Prepared p{mode, static_cast<int32_t>(padded), memory, nullptr, nullptr, nullptr};
  if (mode == Mode::INT8) {
    int64_t plane = round_up(rows * (padded / kGroup) * 4, 64);
    uint8_t* next = memory + round_up(rows * padded, 64);
    p.scale = reinterpret_cast<float*>(next);
    p.scaled_sum = reinterpret_cast<float*>(next + plane);
    p.sum = reinterpret_cast<int32_t*>(next + 2 * plane);
  }
  return p;
}

// One KV head's part of a block: keys [head_dim][32 positions], then values [32][head_dim], both of
// the cache's element type; INT8 adds [32] fp32 key scales and [32] fp32 value scales after them.
constexpr int64_t head_block_bytes(CacheType type, int64_t head_dim) {
  int64_t element = type == CacheType::FP32 ? 4 : type == CacheType::INT8 ? 1 : 2;
  int64_t scales = type == CacheType::INT8 ? 2 * kBlock * 4 : 0;
  return round_up(2 * kBlock * head_dim * element + scales, 64);
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
};

constexpr int kQueryTile = 8;  // most queries in one Attention

// What one chunk of 256 positions adds to one row, unnormalised:
//   [0] the largest score, [1] sum of exp(score - largest), [2] and on, the head_dim weighted sums
//   of values. A row that sees nothing of the chunk has sum 0, and merging it changes no bit.
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
  // Packs tiles [tile, tile_end) from rows of GGUF blocks of the same format, losslessly.
  void (*pack)(Format format, const uint8_t* source, int outputs, int inputs, int tile,
               int tile_end, uint8_t* packed);
  // Decodes one output's row of weights: out[inputs].
  void (*unpack_row)(const Matrix& matrix, int output, float* out);
  // Prepares `count` columns of one row from `column` (a multiple of 32) on. count is a multiple of
  // 32, or reaches the unpadded end of the row, where the padding is then zeroed.
  void (*prepare)(const Prepared& prepared, int row, int column, const float* x, int count);
  // out[(row - first) * stride + (tile - tile_first) * 16 + n] for the given rows and tiles.
  // `out` has room for whole tiles. The format goes with the mode: Q* with INT8, BF16 with BF16,
  // F16 and F32 with FP32.
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
