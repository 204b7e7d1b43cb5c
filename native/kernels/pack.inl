// Weight matrices between the rows that files store and the tiles of formats.h, without loss.

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
    case Format::Q4_K:
      return body(FormatOf<Format::Q4_K>());
    case Format::Q5_K:
      return body(FormatOf<Format::Q5_K>());
    case Format::Q6_K:
      return body(FormatOf<Format::Q6_K>());
    case Format::Q2_K:
      return body(FormatOf<Format::Q2_K>());
    case Format::Q3_K:
      return body(FormatOf<Format::Q3_K>());
    case Format::IQ4_NL:
      return body(FormatOf<Format::IQ4_NL>());
    case Format::INT8:
      return body(FormatOf<Format::INT8>());
    case Format::INT4:
      return body(FormatOf<Format::INT4>());
    case Format::INT4_ASYM:
      return body(FormatOf<Format::INT4_ASYM>());
    case Format::NF4:
      return body(FormatOf<Format::NF4>());
    case Format::NF4_EXACT:
      return body(FormatOf<Format::NF4_EXACT>());
  }
}

// Bytes of one weight that is a number.
constexpr int weight_bytes(Format format) { return layout(format).bits / 8; }

template <Format F>
FARTHING_INLINE void pack_codes(const Matrix& matrix, const uint8_t* source, int64_t row_bytes,
                                int rows, uint8_t* tile) {
  int64_t groups = matrix.groups();
  for (int g = 0; g < groups; g++) {
    for (int n = 0; n < rows; n++) {
      uint8_t codes[kGroup];
      read_stored_codes<F>(source + n * row_bytes, matrix.inputs, g, codes);
      write_codes<F>(codes, n, tile + g * code_bytes(F));
    }
  }
  uint8_t* span = tile + spans_offset<F>(groups);
  for (int64_t s = 0; s < spans(F, matrix.group, matrix.inputs); s++) {
    for (int n = 0; n < rows; n++) pack_span<F>(matrix, source + n * row_bytes, s, n, span);
    span += layout(F).span_bytes;
  }
  if constexpr (layout(F).part_bytes > 0) {
    uint8_t* parts = tile + parts_offset<F>(groups);
    for (int64_t block = 0; block < groups / 8; block++) {
      for (int n = 0; n < rows; n++) {
        pack_parts<F>(source + n * row_bytes + block * stored_row_bytes(F, 0, 256), n,
                      parts + block * 8 * layout(F).part_bytes);
      }
    }
  }
}

template <Format F>
FARTHING_INLINE void pack_numbers(int inputs, const uint8_t* source, int64_t row_bytes, int rows,
                                  uint8_t* tile) {
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

// Padding is zero, scales included: it adds nothing.
void pack(const Matrix& matrix, const uint8_t* source, int tile, int tile_end, uint8_t* packed) {
  with_format(matrix.format, [=](auto f) {
    constexpr Format F = decltype(f)::value;
    int64_t bytes = tile_bytes(F, matrix.group, matrix.inputs);
    int64_t row_bytes = stored_row_bytes(F, matrix.group, matrix.inputs);
    for (int t = tile; t < tile_end; t++) {
      int rest = matrix.outputs - t * kTile, rows = rest < kTile ? rest : kTile;
      const uint8_t* from = source + static_cast<int64_t>(t) * kTile * row_bytes;
      uint8_t* to = packed + t * bytes;
      if (rows < kTile || matrix.inputs % kGroup) memset(to, 0, static_cast<size_t>(bytes));
      memset(to + bytes - 64, 0, 64);
      if constexpr (has_codes(F)) {
        pack_codes<F>(matrix, from, row_bytes, rows, to);
      } else {
        pack_numbers<F>(matrix.inputs, from, row_bytes, rows, to);
      }
    }
  });
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

// What a code stands for before it is scaled; `zero` is its span's where spans have zeros.
template <Format F>
FARTHING_INLINE float code_value(int code, int zero) {
  if constexpr (F == Format::NF4 || F == Format::NF4_EXACT) return kNormalLevels[code];
  if constexpr (F == Format::IQ4_NL) return static_cast<float>(kNonlinearBytes[code] - 128);
  return static_cast<float>(code - (has_zeros(F) ? zero : zero_point(F)));
}

FARTHING_INLINE float lane(Float x, int n) {
  float lanes[kTile];
  store(lanes, x);
  return lanes[n];
}

// scale * value or scale * value + minimum, each operation rounded in float32, as the definition of
// the formats has it.
template <Format F>
FARTHING_INLINE void unpack_codes(const Matrix& matrix, const uint8_t* tile, int n, float* out) {
  constexpr int halves = has_halves(F) ? 2 : 1, length = kGroup / halves;
  int groups = matrix.groups(), shift = span_shift(F, matrix.group);
  for (int run = 0; run < groups * halves; run++) {
    int g = run / halves, half = run % halves;
    Scales at = {tile + spans_offset<F>(groups) + (g >> shift) * layout(F).span_bytes,
                 tile + parts_offset<F>(groups) + g * layout(F).part_bytes};
    float scale = lane(load_scale<F>(at, half), n);
    float minimum = has_minimum(F) ? lane(load_minimum<F>(at, half), n) : 0.0f;
    int zero = has_zeros(F) ? at.span[kHalfBytes + n] : 0;
    int first = run * length;
    int count = matrix.inputs - first < length ? matrix.inputs - first : length;
    for (int k = 0; k < count; k++) {
      int code = read_code<F>(tile + g * code_bytes(F), n, half * length + k);
      float product = scale * code_value<F>(code, zero);
      out[first + k] = has_minimum(F) ? product + minimum : product;
    }
  }
}

void unpack_row(const Matrix& matrix, int output, float* out) {
  with_format(matrix.format, [&](auto f) {
    constexpr Format F = decltype(f)::value;
    int n = output % kTile;
    int64_t bytes = tile_bytes(F, matrix.group, matrix.inputs);
    const uint8_t* tile = matrix.data + output / kTile * bytes;
    if constexpr (has_codes(F)) {
      unpack_codes<F>(matrix, tile, n, out);
    } else {
      for (int k = 0; k < matrix.inputs; k++) out[k] = read_weight<F>(tile, n, k);
    }
  });
}
