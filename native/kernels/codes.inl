// Codes in the vectors of a packed tile (formats.h): written, read one by one, loaded for products.

constexpr int kQuads = kGroup / 4;      // in a group
constexpr int kQuadBytes = kTile * 4;   // one quad of every output of a tile
constexpr int kMaskBytes = kQuads * 8;  // of a group: one upper bit of every code

constexpr bool has_codes(Format format) { return layout(format).bits <= 8; }
// Whether the halves of a group have scales of their own, and so sums of their own.
constexpr bool has_halves(Format format) {
  return format == Format::Q6_K || format == Format::Q2_K || format == Format::Q3_K;
}
// The code that stands for zero, where that is the same in all groups.
constexpr int zero_point(Format format) {
  switch (format) {
    case Format::Q8_0:
    case Format::IQ4_NL:
    case Format::INT8:
    case Format::NF4:
      return 128;
    case Format::Q6_K:
      return 32;
    case Format::Q5_0:
      return 16;
    case Format::Q4_0:
    case Format::INT4:
      return 8;
    case Format::Q3_K:
      return 4;
    default:
      return 0;
  }
}

// The levels that codes stand for: those of IQ4_NL are ggml's, those of NF4 bitsandbytes'.
constexpr float kNormalLevels[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
// As bytes, 128 for zero; one of NF4's is the nearest to 127 times the level.
constexpr uint8_t kNonlinearBytes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                         129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kNormalBytes[16] = {1,   40,  61,  78,  92,  105, 116, 128,
                                      138, 148, 159, 171, 184, 199, 220, 255};

constexpr const uint8_t* level_bytes(Format format) {
  return format == Format::IQ4_NL ? kNonlinearBytes
         : format == Format::NF4  ? kNormalBytes
                                  : nullptr;
}

// Bytes of a group's vectors without the upper bits.
constexpr int lower_bytes(Format format) { return kQuads * kQuadBytes * layout(format).bits / 8; }

// The lowest `bits` of each of four codes.
FARTHING_INLINE uint32_t lowest_bits(uint32_t codes, int bits) {
  return codes & 0x01010101u * ((1u << bits) - 1u);
}

// One output's 32 codes into its group of the tile. Output n - 1 comes before output n.
template <Format F>
FARTHING_INLINE void write_codes(const uint8_t* codes, int n, uint8_t* group) {
  constexpr int bits = layout(F).bits, quads = 8 / bits;  // in a vector
  uint32_t words[kQuads];
  memcpy(words, codes, kGroup);
  for (int v = 0; v < kQuads / quads; v++) {
    uint32_t word = 0;
    for (int i = 0; i < quads; i++) word |= lowest_bits(words[v * quads + i], bits) << (bits * i);
    memcpy(group + v * kQuadBytes + n * 4, &word, 4);
  }
  uint8_t* upper = group + lower_bytes(F);
  if constexpr (layout(F).upper_bits == 1) {
    for (int q = 0; q < kQuads; q++) {
      // A product brings bits 0, 8, 16 and 24 together at bit 24.
      uint32_t four = lowest_bits(words[q] >> bits, 1) * 0x01020408u >> 24 & 15;
      uint8_t* mask = upper + q * 8 + n / 2;
      *mask = static_cast<uint8_t>(n % 2 ? *mask | four << 4 : four);
    }
  }
  if constexpr (layout(F).upper_bits == 2) {
    for (int v = 0; v < 2; v++) {
      uint32_t word = 0;
      for (int i = 0; i < 4; i++) word |= lowest_bits(words[v * 4 + i] >> bits, 2) << (2 * i);
      memcpy(upper + v * kQuadBytes + n * 4, &word, 4);
    }
  }
}

// The code of input k of output n in its group.
template <Format F>
FARTHING_INLINE int read_code(const uint8_t* group, int n, int k) {
  constexpr int bits = layout(F).bits, quads = 8 / bits;
  int q = k / 4, byte = n * 4 + k % 4;
  int code = group[q / quads * kQuadBytes + byte] >> (q % quads * bits) & ((1 << bits) - 1);
  const uint8_t* upper = group + lower_bytes(F);
  if constexpr (layout(F).upper_bits == 1) {
    code |= (upper[q * 8 + byte / 8] >> (byte % 8) & 1) << bits;
  }
  if constexpr (layout(F).upper_bits == 2) {
    code |= (upper[q / 4 * kQuadBytes + byte] >> (q % 4 * 2) & 3) << bits;
  }
  return code;
}

// Step J of a group's four: the codes of quads 2 J and 2 J + 1 of every output, as unsigned bytes
// that stand for themselves less the zero point.
template <Format F, int J>
FARTHING_INLINE void load_codes(const uint8_t* group, Bytes* first, Bytes* second) {
  if constexpr (layout(F).bits == 8) {
    *first = load_bytes(group + 2 * J * kQuadBytes);
    *second = load_bytes(group + (2 * J + 1) * kQuadBytes);
  } else if constexpr (layout(F).bits == 4) {
    Bytes both = load_bytes(group + J * kQuadBytes);
    *first = low_nibbles(both);
    *second = high_nibbles(both);
  } else {
    Bytes four = load_bytes(group + J / 2 * kQuadBytes);
    *first = bit_pairs<2 * J % 4>(four);
    *second = bit_pairs<2 * J % 4 + 1>(four);
  }
  const uint8_t* upper = group + lower_bytes(F);
  if constexpr (layout(F).upper_bits == 1) {
    uint64_t masks[2];
    memcpy(masks, upper + J * 16, 16);
    *first = add_where<1 << layout(F).bits>(*first, masks[0]);
    *second = add_where<1 << layout(F).bits>(*second, masks[1]);
  }
  if constexpr (layout(F).upper_bits == 2) {
    Bytes four = load_bytes(upper + J / 2 * kQuadBytes);
    *first = add_bit_pairs<2 * J % 4>(*first, four);
    *second = add_bit_pairs<2 * J % 4 + 1>(*second, four);
  }
  if constexpr (level_bytes(F) != nullptr) {
    *first = look_up(*first, level_bytes(F));
    *second = look_up(*second, level_bytes(F));
  }
}

// Products of codes below 64 take a shorter way in some tiers; those of any byte may take its
// centre off, which their zero point is.
constexpr bool takes_any_byte(Format format) {
  return layout(format).bits == 8 || level_bytes(format) != nullptr;
}
// sum plus the products of a step's codes with two quads of activations.
template <Format F>
FARTHING_INLINE Int dot_codes(Int sum, Bytes first, Bytes second, int32_t first_quad,
                              int32_t second_quad) {
  if constexpr (takes_any_byte(F)) {
    return dot4(dot4(sum, first, first_quad), second, second_quad);
  } else {
    return dot8_small(sum, first, second, first_quad, second_quad);
  }
}
