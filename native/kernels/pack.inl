// Weight matrices between GGUF's rows of blocks and the tiles of kernels.h, without loss.

template <Format F>
struct FormatOf {
  static constexpr Format value = F;
};

// Calls body(FormatOf<format>()).
template <class Body>
FARTHING_INLINE void with_format(Format format, Body body) {
  switch (format) {
    case Format::F32:
      return body(FormatOf<Format::F32>());
    case Format::F16:
      return body(FormatOf<Format::F16>());
    case Format::BF16:
      return body(FormatOf<Format::BF16>());
    case Format::Q8_0:
      return body(FormatOf<Format::Q8_0>());
    case Format::Q4_0:
      return body(FormatOf<Format::Q4_0>());
    case Format::Q4_1:
      return body(FormatOf<Format::Q4_1>());
    case Format::Q5_0:
      return body(FormatOf<Format::Q5_0>());
    case Format::Q5_1:
      return body(FormatOf<Format::Q5_1>());
  }
}

constexpr bool is_quantised(Format format) { return scale_planes(format) > 0; }
constexpr bool has_minimum(Format format) { return scale_planes(format) == 2; }
constexpr bool has_fifth_bits(Format format) {
  return format == Format::Q5_0 || format == Format::Q5_1;
}
// Bytes of one weight of a format that is not quantised.
constexpr int weight_bytes(Format format) { return format == Format::F32 ? 4 : 2; }
// The code that stands for zero.
constexpr int zero_point(Format format) {
  return format == Format::Q8_0   ? 128
         : format == Format::Q4_0 ? 8
         : format == Format::Q5_0 ? 16
                                  : 0;
}

constexpr int kQuads = kGroup / 4;                     // in a group
constexpr int kQuadBytes = kTile * 4;                  // one quad of every output of a tile
constexpr int kNibbleBytes = kQuads / 2 * kQuadBytes;  // of a group; the fifth bits follow
constexpr int kScaleBytes = kTile * 2;                 // one fp16 number for every output of a tile

// A GGUF block of 32 weights: fp16 scale, fp16 minimum, 32 fifth bits, codes, each where it has it.
constexpr int minimum_offset = 2;
constexpr int fifth_offset(Format format) { return 2 * scale_planes(format); }
constexpr int code_offset(Format format) {
  return fifth_offset(format) + (has_fifth_bits(format) ? 4 : 0);
}
constexpr int block_bytes(Format format) {
  return code_offset(format) + (format == Format::Q8_0 ? kGroup : kGroup / 2);
}

// One group of one output. `codes`: the group of the tile; scale, minimum: the tile's planes at it.
template <Format F>
FARTHING_INLINE void pack_block(const uint8_t* block, int n, uint8_t* codes, uint8_t* scale,
                                uint8_t* minimum) {
  memcpy(scale + n * 2, block, 2);
  if constexpr (has_minimum(F)) memcpy(minimum + n * 2, block + minimum_offset, 2);
  // The nibbles of a block lie as the tile wants them: byte i holds inputs i and i + 16.
  constexpr int quads = F == Format::Q8_0 ? kQuads : kQuads / 2;
  for (int j = 0; j < quads; j++) {
    uint32_t quad;
    memcpy(&quad, block + code_offset(F) + j * 4, 4);
    if constexpr (F == Format::Q8_0) quad ^= 0x80808080u;
    memcpy(codes + j * kQuadBytes + n * 4, &quad, 4);
  }
  if constexpr (has_fifth_bits(F)) {
    uint32_t fifth;
    memcpy(&fifth, block + fifth_offset(F), 4);
    for (int j = 0; j < kQuads; j++) {
      // Quad j < 4 holds the low nibbles of step j, quad 4 + j the high ones.
      uint8_t* mask = codes + kNibbleBytes + (j % 4 * 2 + j / 4) * 8 + n / 2;
      uint8_t bits = static_cast<uint8_t>((fifth >> (4 * j) & 15u) << (n % 2 * 4));
      *mask = static_cast<uint8_t>(n % 2 ? *mask | bits : bits);
    }
  }
}

template <Format F>
FARTHING_INLINE void pack_tile(const uint8_t* source, int rows, int inputs, uint8_t* tile) {
  int64_t row_bytes = stored_row_bytes(F, inputs);
  int groups = (inputs + kGroup - 1) / kGroup;
  if constexpr (is_quantised(F)) {
    uint8_t* scales = tile + groups * code_bytes(F);
    uint8_t* minima = scales + groups * kScaleBytes;
    for (int g = 0; g < groups; g++) {
      for (int n = 0; n < rows; n++) {
        pack_block<F>(source + n * row_bytes + g * block_bytes(F), n, tile + g * code_bytes(F),
                      scales + g * kScaleBytes, minima + g * kScaleBytes);
      }
    }
  } else {
    constexpr int bytes = weight_bytes(F);
    constexpr int step = F == Format::BF16 ? 2 : 1;  // neighbouring inputs of an output
    int whole = inputs / step * step;
    for (int n = 0; n < rows; n++) {
      const uint8_t* row = source + n * row_bytes;
      uint8_t* column = tile + n * step * bytes;
      for (int k = 0; k < whole; k += step) {
        memcpy(column + static_cast<int64_t>(k) * kTile * bytes, row + k * bytes, step * bytes);
      }
      if (whole < inputs) {
        memcpy(column + static_cast<int64_t>(whole) * kTile * bytes, row + whole * bytes, bytes);
      }
    }
  }
}

// `source` and `packed` are the whole matrix. Padding is zero, scales included: it adds nothing.
void pack(Format format, const uint8_t* source, int outputs, int inputs, int tile, int tile_end,
          uint8_t* packed) {
  with_format(format, [=](auto f) {
    constexpr Format F = decltype(f)::value;
    int64_t bytes = tile_bytes(F, inputs), row_bytes = stored_row_bytes(F, inputs);
    for (int t = tile; t < tile_end; t++) {
      int rows = outputs - t * kTile < kTile ? outputs - t * kTile : kTile;
      uint8_t* to = packed + t * bytes;
      if (rows < kTile || inputs % kGroup) memset(to, 0, static_cast<size_t>(bytes));
      memset(to + bytes - 64, 0, 64);
      pack_tile<F>(source + static_cast<int64_t>(t) * kTile * row_bytes, rows, inputs, to);
    }
  });
}

// The code of input k of output n, given its group of the tile.
template <Format F>
FARTHING_INLINE int read_code(const uint8_t* codes, int n, int k) {
  if constexpr (F == Format::Q8_0) return codes[k / 4 * kQuadBytes + n * 4 + k % 4];
  int j = k % 16 / 4, high = k / 16, index = n * 4 + k % 4;
  int code = codes[j * kQuadBytes + index] >> (4 * high) & 15;
  if constexpr (has_fifth_bits(F)) {
    const uint8_t* mask = codes + kNibbleBytes + (j * 2 + high) * 8;
    code |= (mask[index / 8] >> (index % 8) & 1) << 4;
  }
  return code;
}

template <Format F>
FARTHING_INLINE float read_weight(const uint8_t* tile, int n, int k) {
  uint16_t half;
  if constexpr (F == Format::F32) {
    float x;
    memcpy(&x, tile + (static_cast<int64_t>(k) * kTile + n) * 4, 4);
    return x;
  } else if constexpr (F == Format::F16) {
    memcpy(&half, tile + (static_cast<int64_t>(k) * kTile + n) * 2, 2);
    return f16_to_float(half);
  } else {
    memcpy(&half, tile + (static_cast<int64_t>(k / 2) * kTile * 2 + n * 2 + k % 2) * 2, 2);
    uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  }
}

FARTHING_INLINE float read_half(const uint8_t* p) {
  uint16_t half;
  memcpy(&half, p, 2);
  return f16_to_float(half);
}

// scale * (code - zero point) or scale * code + minimum, each operation rounded in float32, as the
// definition of the formats has it.
void unpack_row(const Matrix& matrix, int output, float* out) {
  with_format(matrix.format, [&](auto f) {
    constexpr Format F = decltype(f)::value;
    int n = output % kTile;
    const uint8_t* tile = matrix.data + output / kTile * tile_bytes(F, matrix.inputs);
    if constexpr (is_quantised(F)) {
      const uint8_t* scales = tile + matrix.groups() * code_bytes(F) + n * 2;
      const uint8_t* minima = scales + matrix.groups() * kScaleBytes;
      for (int g = 0; g < matrix.groups(); g++) {
        float scale = read_half(scales + g * kScaleBytes);
        float minimum = has_minimum(F) ? read_half(minima + g * kScaleBytes) : 0.0f;
        int first = g * kGroup;
        int count = matrix.inputs - first < kGroup ? matrix.inputs - first : kGroup;
        for (int k = 0; k < count; k++) {
          int code = read_code<F>(tile + g * code_bytes(F), n, k) - zero_point(F);
          float product = scale * static_cast<float>(code);
          out[first + k] = has_minimum(F) ? product + minimum : product;
        }
      }
    } else {
      for (int k = 0; k < matrix.inputs; k++) out[k] = read_weight<F>(tile, n, k);
    }
  });
}
