// The cache's element types, and one KV head's part of a block. kStep, S for short, is how many
// elements one multiplication takes: 2 for BF16, whose dot products take pairs, else 1.
//   keys [head_dim / S][32 positions][S], then values [32 / S][head_dim][S],
//   then for INT8 [32] key scales and [32] value scales.
// head_dim is a multiple of S. Positions pair up by where they stand in their block, so that a
// row's pairs are the same in every tile.
//
// A factor is what a vector of elements is multiplied by: S numbers of a query along head_dim, or S
// weights along positions, as a tier likes to have them.

struct CacheOfNumbers {
  using Vector = Float;
  static constexpr int kStep = 1;
  static constexpr int kFactorBytes = 4;
  static constexpr bool kScaled = false;
  FARTHING_INLINE Float factors(const Float (&x)[kStep]) { return x[0]; }
  // sum[n] + the numbers of factor n
  FARTHING_INLINE Float add_factors(Float sum, Float factors) { return add(sum, factors); }
  // sum[n] + x[n] * factor
  FARTHING_INLINE Float multiply_add(Float sum, Float x, const uint8_t* factor) {
    float number;
    memcpy(&number, factor, sizeof number);
    return fma(set1(number), x, sum);
  }
};

struct CacheFp32 : CacheOfNumbers {
  using Element = float;
  FARTHING_INLINE Float read(const Element* p) { return load(p); }
  FARTHING_INLINE void write(Element* p, Float x) { store(p, x); }
};

struct CacheFp16 : CacheOfNumbers {
  using Element = uint16_t;
  FARTHING_INLINE Float read(const Element* p) { return load_f16(p); }
  FARTHING_INLINE void write(Element* p, Float x) { store_f16(p, x); }
};

// x is code * scale, the scale one of a token's key or value.
struct CacheInt8 : CacheOfNumbers {
  using Element = int8_t;
  static constexpr bool kScaled = true;
  FARTHING_INLINE Float read(const Element* p) { return load_s8(p); }
  // The quotient passes 127 only where the scale is subnormal, and so coarse.
  FARTHING_INLINE void write(Element* p, Float x) {
    store_s8(p, min(max(x, set1(-127.0f)), set1(127.0f)));
  }
};

struct CacheBf16 {
  using Element = uint16_t;
  using Vector = Int;  // pairs
  static constexpr int kStep = 2;
  static constexpr int kFactorBytes = kPairFactorBytes;
  static constexpr bool kScaled = false;
  FARTHING_INLINE Int read(const Element* p) { return load_pairs(p); }
  FARTHING_INLINE void write(Element* p, Float x) { store_bf16(p, x); }
  FARTHING_INLINE PairFactors factors(const Float (&x)[kStep]) {
    return to_pair_factors(x[0], x[1]);
  }
  FARTHING_INLINE Float add_factors(Float sum, PairFactors factors) {
    return add_pair_factors(sum, factors);
  }
  // sum[n] + x[2 n] * factor[0] + x[2 n + 1] * factor[1]
  FARTHING_INLINE Float multiply_add(Float sum, Int x, const uint8_t* factor) {
    return dot_factor(sum, x, factor);
  }
};

template <class Cache>
FARTHING_INLINE const typename Cache::Element* keys_of(const uint8_t* block) {
  return reinterpret_cast<const typename Cache::Element*>(block);
}
template <class Cache>
FARTHING_INLINE const typename Cache::Element* values_of(const uint8_t* block, int64_t head_dim) {
  return keys_of<Cache>(block) + kBlock * head_dim;
}
FARTHING_INLINE const float* key_scales_of(const uint8_t* block, int64_t head_dim) {
  return reinterpret_cast<const float*>(block + 2 * kBlock * head_dim);
}
FARTHING_INLINE const float* value_scales_of(const uint8_t* block, int64_t head_dim) {
  return key_scales_of(block, head_dim) + kBlock;
}

// max|x| / 127.
float code_scale(const float* x, int count) {
  Float largest = zero();
  for (int i = 0; i < count; i += kLanes)
    largest = max(largest, abs(load_first(x + i, count - i < kLanes ? count - i : kLanes)));
  return reduce_max(largest) / 127.0f;
}

// Writes a token's elements, `Together` side by side, then the next ones `stride` further on;
// `scale` is read for scaled types only. Nothing between them is touched: another thread may be
// writing the neighbour of a pair.
template <class Cache, int Together>
void write_elements(const float* x, int count, float scale, typename Cache::Element* to,
                    int64_t stride) {
  alignas(64) typename Cache::Element rounded[kLanes];
  Float divisor = set1(scale > 0 ? scale : 1.0f);  // 0: every element is zero, or too small to hold
  for (int i = 0; i < count; i += kLanes) {
    int n = count - i < kLanes ? count - i : kLanes;
    Float elements = load_first(x + i, n);
    if constexpr (Cache::kScaled) elements = div(elements, divisor);
    Cache::write(rounded, elements);
    for (int j = 0; j < n; j += Together, to += stride)
      memcpy(to, rounded + j, Together * sizeof *rounded);
  }
}

template <class Cache>
void write_token(int64_t head_dim, uint8_t* block, int slot, const float* key, const float* value) {
  constexpr int kStep = Cache::kStep;
  float key_scale = 1.0f, value_scale = 1.0f;
  if constexpr (Cache::kScaled) {
    float* scales = reinterpret_cast<float*>(block + 2 * kBlock * head_dim);
    scales[slot] = key_scale = code_scale(key, head_dim);
    scales[kBlock + slot] = value_scale = code_scale(value, head_dim);
  }
  auto* keys = reinterpret_cast<typename Cache::Element*>(block);
  auto* values = keys + kBlock * head_dim + slot / kStep * head_dim * kStep + slot % kStep;
  write_elements<Cache, kStep>(key, head_dim, key_scale, keys + slot * kStep, kBlock * kStep);
  write_elements<Cache, 1>(value, head_dim, value_scale, values, kStep);
}

void cache_write(CacheType type, int head_dim, uint8_t* head_block, int slot, const float* key,
                 const float* value) {
  switch (type) {
    case CacheType::FP32:
      return write_token<CacheFp32>(head_dim, head_block, slot, key, value);
    case CacheType::FP16:
      return write_token<CacheFp16>(head_dim, head_block, slot, key, value);
    case CacheType::BF16:
      return write_token<CacheBf16>(head_dim, head_block, slot, key, value);
    case CacheType::INT8:
      return write_token<CacheInt8>(head_dim, head_block, slot, key, value);
  }
}
