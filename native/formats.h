// How weight matrices and activations are stored, packed and prepared: names, layouts and sizes.
// plan/packed.py states the same sizes, and a test compares the two.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farthing {

// The units of the instruction sets (native/isa) include this, and what one of them compiled must
// not become the copy of a function that everyone calls.
#define FARTHING_FOLDED [[gnu::always_inline]] constexpr

constexpr int kTile = 16;   // outputs in one tile of a packed matrix
constexpr int kGroup = 32;  // inputs that share one activation scale

FARTHING_FOLDED int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
FARTHING_FOLDED int64_t round_up(int64_t value, int64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

enum class Mode : int32_t { FP32, BF16, INT8 };  // what a product's activations are rounded to

// The numbers are the ones that backends/native.py passes. Rows of the formats up to IQ4_NL are
// stored as GGUF says, those of the others as quant/int8.py, int4.py and nf4.py say. NF4 and
// NF4_EXACT are stored and packed alike; NF4 rounds its levels to 8 bits in a product.
enum class Format : int32_t {
  F32,
  F16,
  BF16,
  Q8_0,
  Q4_0,
  Q4_1,
  Q5_0,
  Q5_1,
  Q4_K,
  Q5_K,
  Q6_K,
  Q2_K,
  Q3_K,
  IQ4_NL,
  INT8,
  INT4,
  INT4_ASYM,
  NF4,
  NF4_EXACT,
};
constexpr int kFormats = 19;

// A matrix is packed in tiles of 16 outputs; inputs are padded to whole groups of 32, outputs to
// whole tiles, with zeros. A tile is contiguous and padded to 64 bytes: the weights of each group,
// then the spans, then the parts.
//
// Weights that are numbers lie [32 inputs][16 outputs], BF16 as [16 pairs of inputs][16
// outputs][2]. Codes lie in vectors of [16 outputs][4] bytes, each the share of four consecutive
// inputs, a quad:
//   8 bits  eight vectors, one a quad
//   4 bits  four vectors, quad 2 j in the lower half of vector j's bytes, quad 2 j + 1 in the upper
//   2 bits  two vectors, quad 4 v + i in bits 2 i and 2 i + 1 of vector v's bytes
// The upper bits of a code follow: one as [8 quads] masks of 64 bits, bit 4 n + b for input b of
// output n; two as two vectors like those of 2-bit codes.
//
// A span is the inputs under one scale: [16 outputs] fp16 (INT8: fp32), then, where the format has
// them, [16] fp16 minima (INT4_ASYM: [16] bytes, zeros). Where a scale is a code itself, times the
// span's, each group has its part:
//   Q4_K, Q5_K  [16] bytes for the scale, [16] for the minimum
//   Q3_K, Q6_K  [16] int8 for the scale of the first 16 inputs, [16] for that of the others
//   Q2_K        [16] bytes, the scale below and the minimum above, and [16] likewise
// The K-quants' minima are negated: a weight is scale * code + minimum.
struct Layout {
  Mode mode;       // the activations that a product takes
  int bits;        // 32 or 16: numbers; 8, 4 or 2: codes
  int upper_bits;  // of a code, kept apart: 0, 1 or 2
  int span;        // inputs; kRow: all of them; 0: Matrix::group says
  int span_bytes;  // of a tile; 0: the format has no scales
  int part_bytes;  // of a tile and group
};

constexpr int kRow = 1 << 30;

// clang-format off: a table.
constexpr Layout kLayouts[kFormats] = {
    /* F32       */ {Mode::FP32, 32, 0, kRow,  0,  0},
    /* F16       */ {Mode::FP32, 16, 0, kRow,  0,  0},
    /* BF16      */ {Mode::BF16, 16, 0, kRow,  0,  0},
    /* Q8_0      */ {Mode::INT8,  8, 0,   32, 32,  0},
    /* Q4_0      */ {Mode::INT8,  4, 0,   32, 32,  0},
    /* Q4_1      */ {Mode::INT8,  4, 0,   32, 64,  0},
    /* Q5_0      */ {Mode::INT8,  4, 1,   32, 32,  0},
    /* Q5_1      */ {Mode::INT8,  4, 1,   32, 64,  0},
    /* Q4_K      */ {Mode::INT8,  4, 0,  256, 64, 32},
    /* Q5_K      */ {Mode::INT8,  4, 1,  256, 64, 32},
    /* Q6_K      */ {Mode::INT8,  4, 2,  256, 32, 32},
    /* Q2_K      */ {Mode::INT8,  2, 0,  256, 64, 32},
    /* Q3_K      */ {Mode::INT8,  2, 1,  256, 32, 32},
    /* IQ4_NL    */ {Mode::INT8,  4, 0,   32, 32,  0},
    /* INT8      */ {Mode::INT8,  8, 0, kRow, 64,  0},
    /* INT4      */ {Mode::INT8,  4, 0,    0, 32,  0},
    /* INT4_ASYM */ {Mode::INT8,  4, 0,    0, 48,  0},
    /* NF4       */ {Mode::INT8,  4, 0,    0, 32,  0},
    /* NF4_EXACT */ {Mode::FP32,  4, 0,    0, 32,  0},
};
// clang-format on

FARTHING_FOLDED const Layout& layout(Format format) { return kLayouts[static_cast<int>(format)]; }
FARTHING_FOLDED Mode mode_of(Format format) { return layout(format).mode; }

struct Matrix {
  Format format;
  int32_t group;  // inputs under one scale where the layout leaves it open: 32, 64, 128 or all,
                  // rounded up to 32; otherwise 0
  int32_t outputs;
  int32_t inputs;
  const uint8_t* data;

  FARTHING_FOLDED int tiles() const { return static_cast<int>(divide_up(outputs, kTile)); }
  FARTHING_FOLDED int groups() const { return static_cast<int>(divide_up(inputs, kGroup)); }
};

// Whether a group is what the format's layout asks for.
FARTHING_FOLDED bool has_group(const Matrix& m) {
  if (layout(m.format).span > 0) return m.group == 0;
  return m.group == 32 || m.group == 64 || m.group == 128 || m.group == round_up(m.inputs, kGroup);
}

// Bytes of one group's weights of one tile, without scales.
FARTHING_FOLDED int64_t code_bytes(Format format) {
  return kGroup * kTile * (layout(format).bits + layout(format).upper_bits) / 8;
}

// Spans in a row.
FARTHING_FOLDED int64_t spans(Format format, int64_t group, int64_t inputs) {
  return divide_up(inputs, layout(format).span ? layout(format).span : group);
}

FARTHING_FOLDED int64_t tile_bytes(Format format, int64_t group, int64_t inputs) {
  int64_t groups = divide_up(inputs, kGroup);
  return round_up(groups * (code_bytes(format) + layout(format).part_bytes) +
                      spans(format, group, inputs) * layout(format).span_bytes,
                  64);
}

FARTHING_FOLDED int64_t matrix_bytes(Format format, int64_t group, int64_t outputs,
                                     int64_t inputs) {
  return divide_up(outputs, kTile) * tile_bytes(format, group, inputs);
}

// Bytes of a row of `inputs` weights as a file stores them.
FARTHING_FOLDED int64_t stored_row_bytes(Format format, int64_t group, int64_t inputs) {
  int64_t blocks = divide_up(inputs, 32), super_blocks = divide_up(inputs, 256);
  int64_t nibbles = divide_up(inputs, 2);
  switch (format) {
    case Format::F32:
      return inputs * 4;
    case Format::F16:
    case Format::BF16:
      return inputs * 2;
    case Format::Q8_0:
      return blocks * 34;
    case Format::Q4_0:
    case Format::IQ4_NL:
      return blocks * 18;
    case Format::Q4_1:
      return blocks * 20;
    case Format::Q5_0:
      return blocks * 22;
    case Format::Q5_1:
      return blocks * 24;
    case Format::Q4_K:
      return super_blocks * 144;
    case Format::Q5_K:
      return super_blocks * 176;
    case Format::Q6_K:
      return super_blocks * 210;
    case Format::Q2_K:
      return super_blocks * 84;
    case Format::Q3_K:
      return super_blocks * 110;
    case Format::INT8:
      return inputs + 4;
    case Format::INT4:
    case Format::NF4:
    case Format::NF4_EXACT:
      return nibbles + spans(format, group, inputs) * 2;
    case Format::INT4_ASYM:
      return nibbles + spans(format, group, inputs) * 2 +
             divide_up(spans(format, group, inputs), 2);
  }
  return 0;
}

// Rows of activations in the form that a product takes. `inputs` is padded to whole groups, the
// padding is zero. INT8: code = round(x / scale), scale = max|x| / 127 over each group (0 for a
// group of zeros), or the fixed one for all, codes then clamped to 127 either way.
struct Prepared {
  Mode mode;
  int32_t inputs;  // padded
  uint8_t* data;   // [rows][inputs] of float, bf16 or int8
  // INT8 only
  float* scale;                // [rows][groups]
  float* scaled_sum;           // [rows][groups], scale * sum of the group's codes
  int32_t* negative_sum;       // [rows][groups], - sum of the group's codes
  int32_t* negative_half_sum;  // [rows][groups][2], - sums of each half's sixteen codes
  float fixed_scale;           // 0: each group has its own

  FARTHING_FOLDED int groups() const { return inputs / kGroup; }
};

FARTHING_FOLDED int64_t mode_bytes(Mode mode) {
  return mode == Mode::FP32 ? 4 : mode == Mode::BF16 ? 2 : 1;
}

// Bytes of one number for every group of `rows` rows, to whole 64 bytes.
FARTHING_FOLDED int64_t prepared_plane_bytes(int64_t rows, int64_t inputs) {
  return round_up(rows * divide_up(inputs, kGroup) * 4, 64);
}

// Bytes of `rows` prepared rows; every part starts on 64 bytes.
FARTHING_FOLDED int64_t prepared_bytes(Mode mode, int64_t rows, int64_t inputs) {
  int64_t bytes = round_up(rows * round_up(inputs, kGroup) * mode_bytes(mode), 64);
  if (mode == Mode::INT8) bytes += 5 * prepared_plane_bytes(rows, inputs);
  return bytes;
}

// Lays a Prepared over `memory`, which holds prepared_bytes(mode, rows, inputs).
[[gnu::always_inline]] inline Prepared lay_prepared(Mode mode, int64_t rows, int64_t inputs,
                                                    uint8_t* memory) {
  int64_t padded = round_up(inputs, kGroup);
  Prepared p{mode, static_cast<int32_t>(padded), memory, nullptr, nullptr, nullptr, nullptr, 0.0f};
  if (mode == Mode::INT8) {
    int64_t plane = prepared_plane_bytes(rows, inputs);
    uint8_t* next = memory + round_up(rows * padded, 64);
    p.scale = reinterpret_cast<float*>(next);
    p.scaled_sum = reinterpret_cast<float*>(next + plane);
    p.negative_sum = reinterpret_cast<int32_t*>(next + 2 * plane);
    p.negative_half_sum = reinterpret_cast<int32_t*>(next + 3 * plane);
  }
  return p;
}

}  // namespace farthing
