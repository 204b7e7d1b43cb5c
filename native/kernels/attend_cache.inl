// The cache's element types, and one KV head's part of a block: keys [head_dim][32 positions], then
// values [32][head_dim], then for INT8 [32] key scales and [32] value scales.

struct CacheFp32 {
  using Element = float;
  static constexpr bool kScaled = false;
  FARTHING_INLINE Float read(const Element* p) { return load(p); }
  FARTHING_INLINE void write(Element* p, Float x) { store(p, x); }
};

struct CacheFp16 {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  FARTHING_INLINE Float read(const Element* p) { return load_f16(p); }
  FARTHING_INLINE void write(Element* p, Float x) { store_f16(p, x); }
};

struct CacheBf16 {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  FARTHING_INLINE Float read(const Element* p) { return load_bf16(p); }
  FARTHING_INLINE void write(Element* p, Float x) { store_bf16(p, x); }
};

// x is code * scale, the scale one of a token's key or value.
struct CacheInt8 {
  using Element = int8_t;
  static constexpr bool kScaled = true;
  FARTHING_INLINE Float read(const Element* p) { return load_s8(p); }
  // The quotient passes 127 only where the scale is subnormal, and so coarse.
  FARTHING_INLINE void write(Element* p, Float x) {
    store_s8(p, min(max(x, set1(-127.0f)), set1(127.0f)));
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

// Writes element i of a token at to[i * stride]; `scale` is read for scaled types only.
template <class Cache>
void write_elements(const float* x, int count, float scale, typename Cache::Element* to,
                    int64_t stride) {
  alignas(64) typename Cache::Element rounded[kLanes];
  Float divisor = set1(scale > 0 ? scale : 1.0f);  // 0: every element is zero, or too small to hold
  for (int i = 0; i < count; i += kLanes) {
    int n = count - i < kLanes ? count - i : kLanes;
    Float elements = load_first(x + i, n);
    if constexpr (Cache::kScaled) elements = div(elements, divisor);
    Cache::write(rounded, elements);
    for (int j = 0; j < n; ++j) to[(i + j) * stride] = rounded[j];
  }
}

template <class Cache>
void write_token(int64_t head_dim, uint8_t* block, int slot, const float* key, const float* value) {
  float key_scale = 1.0f, value_scale = 1.0f;
  if constexpr (Cache::kScaled) {
    float* scales = reinterpret_cast<float*>(block + 2 * kBlock * head_dim);
    scales[slot] = key_scale = code_scale(key, head_dim);
    scales[kBlock + slot] = value_scale = code_scale(value, head_dim);
  }
  auto* keys = reinterpret_cast<typename Cache::Element*>(block);
  write_elements<Cache>(key, head_dim, key_scale, keys + slot, kBlock);
  write_elements<Cache>(value, head_dim, value_scale, keys + (kBlock + slot) * head_dim, 1);
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
