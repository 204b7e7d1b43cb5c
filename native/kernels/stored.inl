// Rows as files store them: GGUF's blocks (ggml-common.h), farthing's own rows (quant/int8.py,
// int4.py, nf4.py).

// Sixteen bytes into 32 codes: all lower halves, then all upper ones.
FARTHING_INLINE void split_nibbles(const uint8_t* bytes, uint8_t* codes) {
  uint32_t words[kQuads];
  memcpy(words, bytes, kGroup / 2);
  for (int i = 0; i < kQuads / 2; i++) {
    words[kQuads / 2 + i] = words[i] >> 4 & 0x0f0f0f0fu;
    words[i] &= 0x0f0f0f0fu;
  }
  memcpy(codes, words, kGroup);
}

// Sixteen bytes into 32 codes: the lower and the upper half of each byte.
FARTHING_INLINE void split_pairs(const uint8_t* bytes, uint8_t* codes) {
  for (int q = 0; q < kQuads; q++) {
    uint32_t apart = bytes[2 * q] | static_cast<uint32_t>(bytes[2 * q + 1]) << 16;
    uint32_t word = (apart | apart << 4) & 0x0f0f0f0fu;
    memcpy(codes + 4 * q, &word, 4);
  }
}

// Adds 16 to the codes whose bit is set, of 32.
FARTHING_INLINE void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  uint32_t words[kQuads], mask;
  memcpy(words, codes, kGroup);
  memcpy(&mask, bits, 4);
  for (int q = 0; q < kQuads; q++) {
    // A product puts bit b of the four at bit 8 b, among others.
    uint32_t spread = (mask >> (4 * q) & 15) * 0x00204081u & 0x01010101u;
    words[q] |= spread << 4;
  }
  memcpy(codes, words, kGroup);
}

// The group's 32 codes; those beyond the end of the row mean nothing, as nothing but zero is
// multiplied with them.
template <Format F>
FARTHING_INLINE void read_stored_codes(const uint8_t* row, int inputs, int g, uint8_t* codes) {
  // Of a block of 256: which eighth, and which half and quarter of the half.
  int eighth = g % 8, half = eighth / 4, quarter = eighth % 4;
  const uint8_t* block = row;
  if constexpr (layout(F).span == 32) block += g * stored_row_bytes(F, 0, kGroup);
  if constexpr (layout(F).span == 256) block += g / 8 * stored_row_bytes(F, 0, 256);
  if constexpr (F == Format::Q8_0) {
    for (int i = 0; i < kGroup; i++) codes[i] = block[2 + i] ^ 0x80;
  } else if constexpr (F == Format::Q4_0 || F == Format::IQ4_NL) {
    split_nibbles(block + 2, codes);
  } else if constexpr (F == Format::Q4_1) {
    split_nibbles(block + 4, codes);
  } else if constexpr (F == Format::Q5_0) {
    split_nibbles(block + 6, codes);
    add_fifth_bits(block + 2, codes);
  } else if constexpr (F == Format::Q5_1) {
    split_nibbles(block + 8, codes);
    add_fifth_bits(block + 4, codes);
  } else if constexpr (F == Format::Q4_K || F == Format::Q5_K) {
    const uint8_t* lower = block + (F == Format::Q4_K ? 16 : 48) + eighth / 2 * 32;
    for (int i = 0; i < kGroup; i++) {
      int code = lower[i] >> (eighth % 2 * 4) & 15;
      if (F == Format::Q5_K) code |= (block[16 + i] >> eighth & 1) << 4;
      codes[i] = static_cast<uint8_t>(code);
    }
  } else if constexpr (F == Format::Q6_K) {
    const uint8_t* lower = block + half * 64 + quarter % 2 * 32;
    const uint8_t* upper = block + 128 + half * 32;
    for (int i = 0; i < kGroup; i++) {
      int code = lower[i] >> (quarter / 2 * 4) & 15;
      codes[i] = static_cast<uint8_t>(code | (upper[i] >> (quarter * 2) & 3) << 4);
    }
  } else if constexpr (F == Format::Q2_K || F == Format::Q3_K) {
    const uint8_t* lower = block + (F == Format::Q2_K ? 16 : 32) + half * 32;
    for (int i = 0; i < kGroup; i++) {
      int code = lower[i] >> (quarter * 2) & 3;
      if (F == Format::Q3_K) code |= (block[i] >> eighth & 1) << 2;
      codes[i] = static_cast<uint8_t>(code);
    }
  } else {
    int first = g * kGroup, count = inputs - first < kGroup ? inputs - first : kGroup;
    uint8_t bytes[kGroup] = {};
    if constexpr (F == Format::INT8) {
      memcpy(bytes, row + first, static_cast<size_t>(count));
      for (int i = 0; i < kGroup; i++) codes[i] = bytes[i] ^ 0x80;
    } else {
      memcpy(bytes, row + first / 2, static_cast<size_t>((count + 1) / 2));
      split_pairs(bytes, codes);
    }
  }
}

// The scale and minimum of an eighth of a block of Q4_K or Q5_K, six bits each: see
// quant/kquants.py.
FARTHING_INLINE void read_six_bit_pair(const uint8_t* packed, int eighth, uint8_t* scale,
                                       uint8_t* minimum) {
  if (eighth < 4) {
    *scale = packed[eighth] & 63;
    *minimum = packed[eighth + 4] & 63;
  } else {
    uint8_t low = packed[eighth + 4];
    *scale = static_cast<uint8_t>((low & 15) | packed[eighth - 4] >> 6 << 4);
    *minimum = static_cast<uint8_t>(low >> 4 | packed[eighth] >> 6 << 4);
  }
}

// The scale of a sixteenth of a block of Q3_K: four bits and two, 32 for zero.
FARTHING_INLINE uint8_t read_six_bit_scale(const uint8_t* packed, int sixteenth) {
  int low = packed[sixteenth % 8] >> (sixteenth / 8 * 4) & 15;
  int upper = packed[8 + sixteenth % 4] >> (sixteenth / 4 * 2) & 3;
  return static_cast<uint8_t>((low | upper << 4) - 32);
}

// Writes output n of the tile's parts of a block of 256, `parts` being those of its first group.
template <Format F>
FARTHING_INLINE void pack_parts(const uint8_t* block, int n, uint8_t* parts) {
  for (int eighth = 0; eighth < 8; eighth++, parts += layout(F).part_bytes) {
    uint8_t *first = parts + n, *second = parts + kTile + n;
    switch (F) {
      case Format::Q4_K:
      case Format::Q5_K:
        read_six_bit_pair(block + 4, eighth, first, second);
        break;
      case Format::Q6_K:
        *first = block[192 + eighth * 2];
        *second = block[192 + eighth * 2 + 1];
        break;
      case Format::Q2_K:
        *first = block[eighth * 2];
        *second = block[eighth * 2 + 1];
        break;
      default:
        *first = read_six_bit_scale(block + 96, eighth * 2);
        *second = read_six_bit_scale(block + 96, eighth * 2 + 1);
    }
  }
}

// Where a block of GGUF holds its fp16 scale; a minimum, where there is one, follows.
constexpr int stored_scale_offset(Format format) {
  switch (format) {
    case Format::Q6_K:
      return 208;
    case Format::Q2_K:
      return 80;
    case Format::Q3_K:
      return 108;
    default:
      return 0;
  }
}

// Writes output n of span s of a tile from the row it is stored in.
template <Format F>
FARTHING_INLINE void pack_span(const Matrix& matrix, const uint8_t* row, int64_t s, int n,
                               uint8_t* span) {
  if constexpr (F == Format::INT8) {
    memcpy(span + n * 4, row + matrix.inputs, 4);
  } else if constexpr (layout(F).span == 0) {
    const uint8_t* scales = row + divide_up(matrix.inputs, 2);
    memcpy(span + n * 2, scales + s * 2, 2);
    if constexpr (has_zeros(F)) {
      const uint8_t* zeros = scales + spans(F, matrix.group, matrix.inputs) * 2;
      span[kHalfBytes + n] = zeros[s / 2] >> (s % 2 * 4) & 15;
    }
  } else {
    const uint8_t* stored =
        row + s * stored_row_bytes(F, 0, layout(F).span) + stored_scale_offset(F);
    memcpy(span + n * 2, stored, 2);
    if constexpr (has_minimum(F)) {
      uint8_t* minimum = span + kHalfBytes + n * 2;
      memcpy(minimum, stored + 2, 2);
      if constexpr (layout(F).part_bytes > 0) minimum[1] ^= 0x80;  // the sign
    }
  }
}
