// What keys and values are stored as, and one KV head's part of a block. kStep, S for short, is how
// many numbers one multiplication takes: 2 for BF16, whose dot products take pairs, and for INT4,
// whose bytes hold two, else 1.
//   keys [head_dim / S][32 positions][S], then values [32 / S][head_dim][S],
//   then, where they are scaled, [32] key scales and [32] value scales.
// head_dim is a multiple of S. Positions pair up by where they stand in their block, so that a
// row's pairs are the same in every tile.
//
// A factor is what a vector of numbers is multiplied by: S numbers of a query along head_dim, or S
// weights along positions, as a tier likes to have them.

struct NoScale {};

struct Numbers {
  using Vector = Float;
  using Scale = NoScale;
  static constexpr int kStep = 1;
  static constexpr int kTogether = 1;  // elements that hold a step's numbers
  static constexpr int kFactorBytes = 4;
  static constexpr bool kScaled = false, kRotated = false;
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

struct Fp32 : Numbers {
  using Element = float;
  FARTHING_INLINE Float read(const Element* p) { return load(p); }
  FARTHING_INLINE void write(Element* p, Float x) { store(p, x); }
};

struct Fp16 : Numbers {
  using Element = uint16_t;
  FARTHING_INLINE Float read(const Element* p) { return load_f16(p); }
  FARTHING_INLINE void write(Element* p, Float x) { store_f16(p, x); }
};

// A number is code * scale, the scale one of a token's key or value.
struct Int8 : Numbers {
  using Element = int8_t;
  using Scale = float;
  static constexpr bool kScaled = true;
  FARTHING_INLINE Float read(const Element* p) { return load_s8(p); }
  // The quotient passes 127 only where the scale is subnormal, and so coarse.
  FARTHING_INLINE void write(Element* p, Float x) {
    store_s8(p, min(max(x, set1(-127.0f)), set1(127.0f)));
  }
  FARTHING_INLINE Scale scale_for(float largest) { return largest / 127.0f; }
  FARTHING_INLINE float number_of(Scale scale) { return scale; }
  FARTHING_INLINE Float load_scales(const Scale* p) { return load(p); }
};

// Keys alone. A number is (code - 7.5) * scale, code 0 ... 15: sixteen equal steps cover what lies
// between the largest magnitude and its negative, and the farthest from a number is half a step.
struct Int4 : Numbers {
  using Element = uint8_t;
  using Scale = uint16_t;  // fp16
  struct Vector {
    Float even, odd;
  };
  static constexpr int kStep = 2, kFactorBytes = 8;
  static constexpr bool kScaled = true, kRotated = true;
  FARTHING_INLINE Vector read(const Element* p) {
    Int codes = load_u8(p);
    Float middle = set1(7.5f);
    return {sub(to_float(low_bits<4>(codes)), middle),
            sub(to_float(shift_right<4>(codes)), middle)};
  }
  // Writes half as many elements as x has numbers.
  FARTHING_INLINE void write(Element* p, Float x) {
    alignas(64) int8_t codes[kLanes];
    store_s8(codes, min(max(add(x, set1(7.5f)), zero()), set1(15.0f)));
    for (int i = 0; i < kLanes; i += 2)
      p[i / 2] = static_cast<Element>(codes[i] | codes[i + 1] << 4);
  }
  FARTHING_INLINE Float multiply_add(Float sum, Vector x, const uint8_t* factor) {
    float numbers[2];
    memcpy(numbers, factor, sizeof numbers);
    return fma(set1(numbers[1]), x.odd, fma(set1(numbers[0]), x.even, sum));
  }
  FARTHING_INLINE Scale scale_for(float largest) {
    alignas(64) Scale scales[kLanes];
    store_f16(scales, set1(largest / 8.0f));
    return scales[0];
  }
  FARTHING_INLINE float number_of(Scale scale) { return f16_to_float(scale); }
  FARTHING_INLINE Float load_scales(const Scale* p) { return load_f16(p); }
};

struct Bf16 {
  using Element = uint16_t;
  using Vector = Int;  // pairs
  using Scale = NoScale;
  static constexpr int kStep = 2, kTogether = 2;
  static constexpr int kFactorBytes = kPairFactorBytes;
  static constexpr bool kScaled = false, kRotated = false;
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

template <class K, class V>
struct Cache {
  using Keys = K;
  using Values = V;
};

// body(Cache<...>()) for the cache type.
template <class Body>
FARTHING_INLINE void with_cache(CacheType type, Body body) {
  switch (type) {
    case CacheType::FP32:
      return body(Cache<Fp32, Fp32>());
    case CacheType::FP16:
      return body(Cache<Fp16, Fp16>());
    case CacheType::BF16:
      return body(Cache<Bf16, Bf16>());
    case CacheType::INT8:
      return body(Cache<Int8, Int8>());
    case CacheType::INT4_KEYS:
      return body(Cache<Int4, Int8>());
  }
}

// Elements of 32 positions.
template <class Part>
FARTHING_INLINE int64_t part_elements(int64_t head_dim) {
  return kBlock * head_dim / Part::kStep * Part::kTogether;
}
template <class Cache>
FARTHING_INLINE const typename Cache::Keys::Element* keys_of(const uint8_t* block) {
  return reinterpret_cast<const typename Cache::Keys::Element*>(block);
}
template <class Cache>
FARTHING_INLINE const typename Cache::Values::Element* values_of(const uint8_t* block,
                                                                 int64_t head_dim) {
  return reinterpret_cast<const typename Cache::Values::Element*>(
      keys_of<Cache>(block) + part_elements<typename Cache::Keys>(head_dim));
}
template <class Cache>
FARTHING_INLINE const typename Cache::Keys::Scale* key_scales_of(const uint8_t* block,
                                                                 int64_t head_dim) {
  return reinterpret_cast<const typename Cache::Keys::Scale*>(
      values_of<Cache>(block, head_dim) + part_elements<typename Cache::Values>(head_dim));
}
template <class Cache>
FARTHING_INLINE const typename Cache::Values::Scale* value_scales_of(const uint8_t* block,
                                                                     int64_t head_dim) {
  return reinterpret_cast<const typename Cache::Values::Scale*>(
      key_scales_of<Cache>(block, head_dim) + kBlock);
}

float largest_magnitude(const float* x, int count) {
  Float largest = zero();
  for (int i = 0; i < count; i += kLanes)
    largest = max(largest, abs(load_first(x + i, count - i < kLanes ? count - i : kLanes)));
  return reduce_max(largest);
}

// Writes a token's elements, `Together` side by side, then the next ones `stride` further on; they
// are divided by `scale` where the type is scaled. Nothing between them is touched: another thread
// may be writing the neighbour of a pair.
template <class Part, int Together>
void write_elements(const float* x, int count, float scale, typename Part::Element* to,
                    int64_t stride) {
  constexpr int kNumbers = Part::kStep / Part::kTogether;  // in an element
  alignas(64) typename Part::Element rounded[kLanes];
  Float divisor = set1(scale > 0 ? scale : 1.0f);  // 0: every number is zero, or too small to hold
  for (int i = 0; i < count; i += kLanes) {
    int n = count - i < kLanes ? count - i : kLanes;
    Float numbers = load_first(x + i, n);
    if constexpr (Part::kScaled) numbers = div(numbers, divisor);
    Part::write(rounded, numbers);
    for (int j = 0; j < n / kNumbers; j += Together, to += stride)
      memcpy(to, rounded + j, Together * sizeof *rounded);
  }
}

// One token's numbers, and their scale where they have one.
template <class Part, int Together>
void write_part(const float* x, int count, const typename Part::Element* to, int64_t stride,
                [[maybe_unused]] const typename Part::Scale* scale) {
  float number = 1.0f;
  if constexpr (Part::kScaled) {
    auto* place = const_cast<typename Part::Scale*>(scale);
    *place = Part::scale_for(largest_magnitude(x, count));
    number = Part::number_of(*place);
  }
  write_elements<Part, Together>(x, count, number, const_cast<typename Part::Element*>(to), stride);
}

template <class Cache>
void write_token(int head_dim, uint8_t* block, int slot, const float* key, const float* value) {
  using Keys = typename Cache::Keys;
  using Values = typename Cache::Values;
  const typename Keys::Scale* key_scale = nullptr;
  const typename Values::Scale* value_scale = nullptr;
  if constexpr (Keys::kScaled) key_scale = key_scales_of<Cache>(block, head_dim) + slot;
  if constexpr (Values::kScaled) value_scale = value_scales_of<Cache>(block, head_dim) + slot;
  alignas(64) float rotated[Keys::kRotated ? kMostRotated : 1];
  if constexpr (Keys::kRotated) {
    memcpy(rotated, key, sizeof(float) * head_dim);
    rotate(rotated, head_dim);
    key = rotated;
  }
  constexpr int kTogether = Keys::kTogether, kStep = Values::kStep;
  write_part<Keys, kTogether>(key, head_dim, keys_of<Cache>(block) + slot * kTogether,
                              kBlock * kTogether, key_scale);
  write_part<Values, 1>(
      value, head_dim,
      values_of<Cache>(block, head_dim) + slot / kStep * head_dim * kStep + slot % kStep, kStep,
      value_scale);
}

void cache_write(CacheType type, int head_dim, uint8_t* head_block, int slot, const float* key,
                 const float* value) {
  with_cache(type, [&](auto cache) {
    write_token<decltype(cache)>(head_dim, head_block, slot, key, value);
  });
}
