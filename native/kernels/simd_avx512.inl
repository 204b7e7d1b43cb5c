// Sixteen-lane vectors on AVX-512. The scalar and AVX2 tiers give the same names and meanings
// (simd_scalar.inl, simd_avx2.inl); the bodies are written against these alone.
#define FARTHING_INLINE static inline __attribute__((always_inline))

constexpr int kLanes = 16;
constexpr int kByteCentre = 0;  // what dot4 takes off every byte
constexpr int kRegisters = 32;  // how many Floats the registers hold

struct Float {  // sixteen floats
  __m512 v;
};
struct Int {  // sixteen int32
  __m512i v;
};
struct Bytes {  // sixty-four bytes: four consecutive inputs of each of sixteen outputs
  __m512i v;
};

FARTHING_INLINE Float zero() { return {_mm512_setzero_ps()}; }
FARTHING_INLINE Float set1(float x) { return {_mm512_set1_ps(x)}; }
FARTHING_INLINE Float load(const float* p) { return {_mm512_loadu_ps(p)}; }
FARTHING_INLINE void store(float* p, Float x) { _mm512_storeu_ps(p, x.v); }

// The first `count` (0 ... 16) lanes; the others read as zero, and are not touched in memory.
FARTHING_INLINE __mmask16 lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
FARTHING_INLINE Float load_first(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(lanes(count), p)};
}
FARTHING_INLINE void store_first(float* p, Float x, int count) {
  _mm512_mask_storeu_ps(p, lanes(count), x.v);
}
// Lanes [from, to) of `a`, the others of `b`.
FARTHING_INLINE Float select(int from, int to, Float a, Float b) {
  __mmask16 m = static_cast<__mmask16>(lanes(to) & ~lanes(from));
  return {_mm512_mask_blend_ps(m, b.v, a.v)};
}

FARTHING_INLINE Float add(Float a, Float b) { return {_mm512_add_ps(a.v, b.v)}; }
FARTHING_INLINE Float sub(Float a, Float b) { return {_mm512_sub_ps(a.v, b.v)}; }
FARTHING_INLINE Float mul(Float a, Float b) { return {_mm512_mul_ps(a.v, b.v)}; }
FARTHING_INLINE Float div(Float a, Float b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once where the tier has such an instruction.
FARTHING_INLINE Float fma(Float a, Float b, Float c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
FARTHING_INLINE Float max(Float a, Float b) { return {_mm512_max_ps(a.v, b.v)}; }
FARTHING_INLINE Float min(Float a, Float b) { return {_mm512_min_ps(a.v, b.v)}; }
FARTHING_INLINE Float abs(Float a) { return {_mm512_abs_ps(a.v)}; }
// To the nearest integer, halves to even.
FARTHING_INLINE Float round(Float a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127].
FARTHING_INLINE Float exp2_integral(Float n) {
  __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
// a * 2^n for integral n <= 0. A NaN in both stays one.
FARTHING_INLINE Float times_exp2(Float a, Float n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// a where condition < bound, b elsewhere.
FARTHING_INLINE Float where_less(Float condition, Float bound, Float a, Float b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(condition.v, bound.v, _CMP_LT_OQ), b.v, a.v)};
}
// Lanes added in one fixed order: halves, then quarters, then pairs.
FARTHING_INLINE float reduce_add(Float a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
FARTHING_INLINE float reduce_max(Float a) { return _mm512_reduce_max_ps(a.v); }

// Lane i gets lane i ^ Distance.
template <int Distance>
FARTHING_INLINE Float exchange_lanes(Float a) {
  if constexpr (Distance == 1) return {_mm512_permute_ps(a.v, 0xb1)};
  if constexpr (Distance == 2) return {_mm512_permute_ps(a.v, 0x4e)};
  if constexpr (Distance == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
  return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
}

FARTHING_INLINE float f16_to_float(uint16_t x) { return _cvtsh_ss(x); }
FARTHING_INLINE Float load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
FARTHING_INLINE void store_f16(uint16_t* p, Float x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FARTHING_INLINE Float load_bf16(const uint16_t* p) {
  __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
// Round to nearest even; NaN stays a NaN.
FARTHING_INLINE void store_bf16(uint16_t* p, Float x) {
  __m256bh h = _mm512_cvtneps_pbh(x.v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i&>(h));
}
FARTHING_INLINE Float load_s8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Nearest integers, halves to even; x within [-127, 127].
FARTHING_INLINE void store_s8(int8_t* p, Float x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

FARTHING_INLINE Int set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
FARTHING_INLINE Int add_int(Int a, Int b) { return {_mm512_add_epi32(a.v, b.v)}; }
FARTHING_INLINE Int sub_int(Int a, Int b) { return {_mm512_sub_epi32(a.v, b.v)}; }
// a * b for a in [0, 2^15) and b in [-2^15, 2^15).
FARTHING_INLINE Int mul_int(Int a, Int b) { return {_mm512_madd_epi16(a.v, b.v)}; }
template <int Bits>
FARTHING_INLINE Int shift_left(Int a) {
  return {_mm512_slli_epi32(a.v, Bits)};
}
// Zeros come in from above.
template <int Bits>
FARTHING_INLINE Int shift_right(Int a) {
  return {_mm512_srli_epi32(a.v, Bits)};
}
// Copies of the sign do.
template <int Bits>
FARTHING_INLINE Int shift_right_signed(Int a) {
  return {_mm512_srai_epi32(a.v, Bits)};
}
template <int Bits>
FARTHING_INLINE Int low_bits(Int a) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32((1 << Bits) - 1))};
}
FARTHING_INLINE Int load_u8(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
FARTHING_INLINE Int max_int(Int a, Int b) { return {_mm512_max_epi32(a.v, b.v)}; }
FARTHING_INLINE Float to_float(Int a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Nearest integers, halves to even; INT32_MIN for what an int32 cannot hold.
FARTHING_INLINE Int to_int(Float a) { return {_mm512_cvtps_epi32(a.v)}; }
// The bits of the floats, and back.
FARTHING_INLINE Int as_int(Float a) { return {_mm512_castps_si512(a.v)}; }
FARTHING_INLINE Float as_float(Int a) { return {_mm512_castsi512_ps(a.v)}; }
FARTHING_INLINE int32_t reduce_add_int(Int a) { return _mm512_reduce_add_epi32(a.v); }
FARTHING_INLINE int32_t reduce_max_int(Int a) { return _mm512_reduce_max_epi32(a.v); }
FARTHING_INLINE void store_int(int32_t* p, Int x) { _mm512_storeu_si512(p, x.v); }

// Lane i is what `both` makes of the lanes of a[i], in any order: each round halves the vectors and
// brings those of two into one.
template <class Both>
FARTHING_INLINE Int reduce_each(const Int (&a)[kLanes], Both both) {
  Int pairs[8], fours[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    __m512i x = a[2 * i].v, y = a[2 * i + 1].v;
    pairs[i] = both(Int{_mm512_unpacklo_epi32(x, y)}, Int{_mm512_unpackhi_epi32(x, y)});
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    __m512i x = pairs[2 * i].v, y = pairs[2 * i + 1].v;
    fours[i] = both(Int{_mm512_unpacklo_epi64(x, y)}, Int{_mm512_unpackhi_epi64(x, y)});
  }
  auto quarters = [both](Int x, Int y) {
    return both(Int{_mm512_shuffle_i32x4(x.v, y.v, 0x88)},
                Int{_mm512_shuffle_i32x4(x.v, y.v, 0xdd)});
  };
  return quarters(quarters(fours[0], fours[1]), quarters(fours[2], fours[3]));
}
FARTHING_INLINE Int reduce_add_each(const Int (&a)[kLanes]) {
  return reduce_each(a, [](Int x, Int y) { return add_int(x, y); });
}
FARTHING_INLINE Int reduce_max_each(const Int (&a)[kLanes]) {
  return reduce_each(a, [](Int x, Int y) { return max_int(x, y); });
}

FARTHING_INLINE Bytes load_bytes(const uint8_t* p) {
  __m512i v = _mm512_loadu_si512(p);
  // Else the compiler would load it again for every row, and wait for the loads.
  __asm__("" : "+v"(v));
  return {v};
}
FARTHING_INLINE void store_bytes(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a.v); }
FARTHING_INLINE Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
FARTHING_INLINE Bytes high_nibbles(Bytes a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
// The pair of bits I (0 ... 3) of every byte: bits 2 I and 2 I + 1.
template <int I>
FARTHING_INLINE Bytes bit_pairs(Bytes a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 2 * I), _mm512_set1_epi8(3))};
}
// Adds 16 times the pair of bits I of every byte of `pairs` to bytes below 16.
template <int I>
FARTHING_INLINE Bytes add_bit_pairs(Bytes a, Bytes pairs) {
  __m512i moved = I < 2 ? _mm512_slli_epi16(pairs.v, I < 2 ? 4 - 2 * I : 0)
                        : _mm512_srli_epi16(pairs.v, I < 2 ? 0 : 2 * I - 4);
  constexpr int a_or_both = 0xf8;  // a | (b & c)
  return {_mm512_ternarylogic_epi32(a.v, moved, _mm512_set1_epi8(0x30), a_or_both)};
}
// Adds Value to the bytes whose bit is set in `mask`.
template <int Value>
FARTHING_INLINE Bytes add_where(Bytes a, uint64_t mask) {
  return {_mm512_mask_add_epi8(a.v, mask, a.v, _mm512_set1_epi8(Value))};
}
// levels[byte] for bytes below 16.
FARTHING_INLINE Bytes look_up(Bytes a, const uint8_t* levels) {
  __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a.v)};
}
// levels[number] for the four bits from bit Shift on of each output's 32.
template <int Shift>
FARTHING_INLINE Float look_up_lanes(Bytes a, const float* levels) {
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(a.v, Shift), _mm512_loadu_ps(levels))};
}
// sum[n] + the four products of output n's unsigned bytes with the signed bytes of `quad`, exactly.
FARTHING_INLINE Int dot4(Int sum, Bytes a, int32_t quad) {
  return {_mm512_dpbusd_epi32(sum.v, a.v, _mm512_set1_epi32(quad))};
}
// The same for the bytes of two vectors and a quad for each; all bytes are below 64, so that tiers
// without such an instruction may add four products in 16 bits.
FARTHING_INLINE Int dot8_small(Int sum, Bytes first, Bytes second, int32_t first_quad,
                               int32_t second_quad) {
  return dot4(dot4(sum, first, first_quad), second, second_quad);
}

// Thirty-two 16-bit numbers, a lane holding two of them.
FARTHING_INLINE Int load_pairs(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
// sum[n] + a[2 n] * pair[0] + a[2 n + 1] * pair[1] for bf16 pairs, in the tier's own fixed way.
FARTHING_INLINE Float dot_bf16(Float sum, Int a, uint32_t pair) {
  __m512i b = _mm512_set1_epi32(static_cast<int32_t>(pair));
  return {
      _mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh&>(a.v), reinterpret_cast<__m512bh&>(b))};
}

// Thirty-two numbers rounded to bf16, in pairs, each to be a factor of dot_factor.
constexpr int kPairFactorBytes = 4;
struct PairFactors {
  Int v;
};
FARTHING_INLINE PairFactors to_pair_factors(Float first, Float second) {
  __m512bh h = _mm512_cvtne2ps_pbh(second.v, first.v);
  return {{reinterpret_cast<__m512i&>(h)}};
}
// sum[n] plus some two of the numbers.
FARTHING_INLINE Float add_pair_factors(Float sum, PairFactors factors) {
  return dot_bf16(sum, factors.v, 0x3f803f80);  // ones
}
// dot_bf16 with the factor that lies there.
FARTHING_INLINE Float dot_factor(Float sum, Int a, const uint8_t* factor) {
  uint32_t pair;
  memcpy(&pair, factor, sizeof pair);
  return dot_bf16(sum, a, pair);
}

FARTHING_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
