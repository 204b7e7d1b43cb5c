// Sixteen-lane vectors on AVX2, FMA and F16C: two halves of eight lanes. Names and meanings are
// those of simd_avx512.inl, and so is the order of every reduction.
#define FARTHING_INLINE static inline __attribute__((always_inline))

constexpr int kLanes = 16;
constexpr int kByteCentre = 128;  // what dot4 takes off every byte, which makes it a signed one
constexpr int kRegisters = 8;     // how many Floats the registers hold

struct Float {  // sixteen floats
  __m256 low, high;
};
struct Int {  // sixteen int32
  __m256i low, high;
};
struct Bytes {  // sixty-four bytes: four consecutive inputs of each of sixteen outputs
  __m256i low, high;
};

FARTHING_INLINE Float zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
FARTHING_INLINE Float set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FARTHING_INLINE Float load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
FARTHING_INLINE void store(float* p, Float x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}

// All bits of lane i set where i < count; `first` is the index of the half's first lane.
FARTHING_INLINE __m256i lanes(int count, int first) {
  __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count - first), index);
}
// The first `count` (0 ... 16) lanes; the others read as zero, and are not touched in memory.
FARTHING_INLINE Float load_first(const float* p, int count) {
  return {_mm256_maskload_ps(p, lanes(count, 0)), _mm256_maskload_ps(p + 8, lanes(count, 8))};
}
FARTHING_INLINE void store_first(float* p, Float x, int count) {
  _mm256_maskstore_ps(p, lanes(count, 0), x.low);
  _mm256_maskstore_ps(p + 8, lanes(count, 8), x.high);
}
// Lanes [from, to) of `a`, the others of `b`.
FARTHING_INLINE Float select(int from, int to, Float a, Float b) {
  __m256i low = _mm256_andnot_si256(lanes(from, 0), lanes(to, 0));
  __m256i high = _mm256_andnot_si256(lanes(from, 8), lanes(to, 8));
  return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(low)),
          _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(high))};
}

FARTHING_INLINE Float add(Float a, Float b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
FARTHING_INLINE Float sub(Float a, Float b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
FARTHING_INLINE Float mul(Float a, Float b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
FARTHING_INLINE Float div(Float a, Float b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// a * b + c, rounded once.
FARTHING_INLINE Float fma(Float a, Float b, Float c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
FARTHING_INLINE Float max(Float a, Float b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
FARTHING_INLINE Float min(Float a, Float b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
FARTHING_INLINE Float abs(Float a) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
// To the nearest integer, halves to even.
FARTHING_INLINE Float round(Float a) {
  return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127], 0 for -127.
FARTHING_INLINE Float exp2_integral(Float n) {
  __m256i bias = _mm256_set1_epi32(127);
  __m256i low = _mm256_add_epi32(_mm256_cvtps_epi32(n.low), bias);
  __m256i high = _mm256_add_epi32(_mm256_cvtps_epi32(n.high), bias);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(high, 23))};
}
// a * 2^n for integral n <= 0; 0 for n below -126. A NaN in both stays one.
FARTHING_INLINE Float times_exp2(Float a, Float n) {
  return mul(a, exp2_integral(max(set1(-127.0f), n)));
}
// a where condition < bound, b elsewhere.
FARTHING_INLINE Float where_less(Float condition, Float bound, Float a, Float b) {
  __m256 low = _mm256_cmp_ps(condition.low, bound.low, _CMP_LT_OQ);
  __m256 high = _mm256_cmp_ps(condition.high, bound.high, _CMP_LT_OQ);
  return {_mm256_blendv_ps(b.low, a.low, low), _mm256_blendv_ps(b.high, a.high, high)};
}
// Lanes added in one fixed order: halves, then quarters, then pairs.
FARTHING_INLINE float reduce_add(Float a) {
  __m256 h = _mm256_add_ps(a.low, a.high);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
FARTHING_INLINE float reduce_max(Float a) {
  __m256 h = _mm256_max_ps(a.low, a.high);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

// Lane i gets lane i ^ Distance.
template <int Distance>
FARTHING_INLINE Float exchange_lanes(Float a) {
  if constexpr (Distance == 1)
    return {_mm256_permute_ps(a.low, 0xb1), _mm256_permute_ps(a.high, 0xb1)};
  if constexpr (Distance == 2)
    return {_mm256_permute_ps(a.low, 0x4e), _mm256_permute_ps(a.high, 0x4e)};
  if constexpr (Distance == 4)
    return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
  return {a.high, a.low};
}

FARTHING_INLINE float f16_to_float(uint16_t x) { return _cvtsh_ss(x); }
FARTHING_INLINE Float load_f16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
FARTHING_INLINE void store_f16(uint16_t* p, Float x) {
  __m128i* halves = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(halves + 1,
                   _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FARTHING_INLINE Float load_bf16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves));
  __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}
// The upper halves of floats rounded to nearest even, in the lower halves of their lanes. A NaN
// keeps its upper half, made quiet; a subnormal becomes zero, as in the instruction of AVX-512.
FARTHING_INLINE __m256i round_bf16(__m256 x) {
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MIN));
  __m256i magnitude = _mm256_xor_si256(bits, sign);
  __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  __m256i subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
  __m256i rounded = _mm256_blendv_epi8(up, quiet, nan);
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, sign, subnormal), 16);
}
// Round to nearest even; NaN stays a NaN.
FARTHING_INLINE void store_bf16(uint16_t* p, Float x) {
  __m256i mixed = _mm256_packus_epi32(round_bf16(x.low), round_bf16(x.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}
FARTHING_INLINE Float load_s8(const int8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
// Nearest integers, halves to even; x within [-127, 127].
FARTHING_INLINE void store_s8(int8_t* p, Float x) {
  __m256i mixed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
  __m256i words = _mm256_permute4x64_epi64(mixed, 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

FARTHING_INLINE Int set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
FARTHING_INLINE Int add_int(Int a, Int b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
FARTHING_INLINE Int sub_int(Int a, Int b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
// a * b for a in [0, 2^15) and b in [-2^15, 2^15).
FARTHING_INLINE Int mul_int(Int a, Int b) {
  return {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)};
}
template <int Bits>
FARTHING_INLINE Int shift_left(Int a) {
  return {_mm256_slli_epi32(a.low, Bits), _mm256_slli_epi32(a.high, Bits)};
}
// Zeros come in from above.
template <int Bits>
FARTHING_INLINE Int shift_right(Int a) {
  return {_mm256_srli_epi32(a.low, Bits), _mm256_srli_epi32(a.high, Bits)};
}
// Copies of the sign do.
template <int Bits>
FARTHING_INLINE Int shift_right_signed(Int a) {
  return {_mm256_srai_epi32(a.low, Bits), _mm256_srai_epi32(a.high, Bits)};
}
template <int Bits>
FARTHING_INLINE Int low_bits(Int a) {
  __m256i mask = _mm256_set1_epi32((1 << Bits) - 1);
  return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
FARTHING_INLINE Int load_u8(const uint8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
FARTHING_INLINE Int max_int(Int a, Int b) {
  return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)};
}
FARTHING_INLINE Float to_float(Int a) {
  return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}
// Nearest integers, halves to even; INT32_MIN for what an int32 cannot hold.
FARTHING_INLINE Int to_int(Float a) {
  return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
}
// The bits of the floats, and back.
FARTHING_INLINE Int as_int(Float a) {
  return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)};
}
FARTHING_INLINE Float as_float(Int a) {
  return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)};
}
FARTHING_INLINE int32_t reduce_add_int(Int a) {
  __m256i h = _mm256_add_epi32(a.low, a.high);
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
FARTHING_INLINE int32_t reduce_max_int(Int a) {
  __m256i h = _mm256_max_epi32(a.low, a.high);
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
FARTHING_INLINE void store_int(int32_t* p, Int x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.high);
}

// Lane i is what `both` makes of the lanes of a[i], in any order: each round halves the vectors and
// brings those of two into one.
template <class Both>
FARTHING_INLINE __m256i reduce_eight(const Int* a, Both both) {
  __m256i pairs[4], fours[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    __m256i x = both(a[2 * i].low, a[2 * i].high), y = both(a[2 * i + 1].low, a[2 * i + 1].high);
    pairs[i] = both(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    __m256i x = pairs[2 * i], y = pairs[2 * i + 1];
    fours[i] = both(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
  }
  return both(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
              _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}
FARTHING_INLINE Int reduce_add_each(const Int (&a)[kLanes]) {
  auto both = [](__m256i x, __m256i y) { return _mm256_add_epi32(x, y); };
  return {reduce_eight(a, both), reduce_eight(a + 8, both)};
}
FARTHING_INLINE Int reduce_max_each(const Int (&a)[kLanes]) {
  auto both = [](__m256i x, __m256i y) { return _mm256_max_epi32(x, y); };
  return {reduce_eight(a, both), reduce_eight(a + 8, both)};
}

FARTHING_INLINE Bytes load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
FARTHING_INLINE void store_bytes(uint8_t* p, Bytes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.high);
}
FARTHING_INLINE Bytes low_nibbles(Bytes a) {
  __m256i nibble = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.low, nibble), _mm256_and_si256(a.high, nibble)};
}
FARTHING_INLINE Bytes high_nibbles(Bytes a) {
  return low_nibbles({_mm256_srli_epi16(a.low, 4), _mm256_srli_epi16(a.high, 4)});
}
// The pair of bits I (0 ... 3) of every byte: bits 2 I and 2 I + 1.
template <int I>
FARTHING_INLINE Bytes bit_pairs(Bytes a) {
  __m256i pair = _mm256_set1_epi8(3);
  return {_mm256_and_si256(_mm256_srli_epi16(a.low, 2 * I), pair),
          _mm256_and_si256(_mm256_srli_epi16(a.high, 2 * I), pair)};
}
// Adds 16 times the pair of bits I of every byte of `pairs` to bytes below 16.
template <int I>
FARTHING_INLINE Bytes add_bit_pairs(Bytes a, Bytes pairs) {
  Bytes pair = bit_pairs<I>(pairs);
  return {_mm256_or_si256(a.low, _mm256_slli_epi16(pair.low, 4)),
          _mm256_or_si256(a.high, _mm256_slli_epi16(pair.high, 4))};
}
// Value in every byte whose bit is set in `mask`.
template <int Value>
FARTHING_INLINE __m256i spread_bits(uint32_t mask) {
  __m256i bytes =
      _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(mask)),
                          _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                           2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
  __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(Value));
}
// Adds Value to the bytes whose bit is set in `mask`.
template <int Value>
FARTHING_INLINE Bytes add_where(Bytes a, uint64_t mask) {
  return {_mm256_add_epi8(a.low, spread_bits<Value>(static_cast<uint32_t>(mask))),
          _mm256_add_epi8(a.high, spread_bits<Value>(static_cast<uint32_t>(mask >> 32)))};
}
// levels[byte] for bytes below 16.
FARTHING_INLINE Bytes look_up(Bytes a, const uint8_t* levels) {
  __m256i table =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)));
  return {_mm256_shuffle_epi8(table, a.low), _mm256_shuffle_epi8(table, a.high)};
}
// levels[number] for the lowest four bits of each lane.
FARTHING_INLINE __m256 look_up_eight(__m256i numbers, const float* levels) {
  __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(levels), numbers);
  __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(levels + 8), numbers);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(numbers, 28)));
}
// levels[number] for the four bits from bit Shift on of each output's 32.
template <int Shift>
FARTHING_INLINE Float look_up_lanes(Bytes a, const float* levels) {
  return {look_up_eight(_mm256_srli_epi32(a.low, Shift), levels),
          look_up_eight(_mm256_srli_epi32(a.high, Shift), levels)};
}
// sum[n] + the four products of output n's bytes, less 128, with the signed bytes of `quad`,
// exactly. vpmaddubsw keeps sums of two products in 16 bits: magnitudes up to 128 and 127 fit,
// unsigned bytes up to 255 would not.
FARTHING_INLINE __m256i dot4_half(__m256i sum, __m256i a, __m256i quad) {
  __m256i centred = _mm256_xor_si256(a, _mm256_set1_epi8(-128));
  __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(quad, centred));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
FARTHING_INLINE Int dot4(Int sum, Bytes a, int32_t quad) {
  __m256i b = _mm256_set1_epi32(quad);
  return {dot4_half(sum.low, a.low, b), dot4_half(sum.high, a.high, b)};
}
// sum[n] + the products of the bytes of two vectors, themselves, with a quad each. All bytes are
// below 64: four products stay within 16 bits.
FARTHING_INLINE __m256i dot8_half(__m256i sum, __m256i first, __m256i second, __m256i first_quad,
                                  __m256i second_quad) {
  __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(first, first_quad),
                                   _mm256_maddubs_epi16(second, second_quad));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
FARTHING_INLINE Int dot8_small(Int sum, Bytes first, Bytes second, int32_t first_quad,
                               int32_t second_quad) {
  __m256i b = _mm256_set1_epi32(first_quad), d = _mm256_set1_epi32(second_quad);
  return {dot8_half(sum.low, first.low, second.low, b, d),
          dot8_half(sum.high, first.high, second.high, b, d)};
}

// Thirty-two 16-bit numbers, a lane holding two of them.
FARTHING_INLINE Int load_pairs(const uint16_t* p) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
// sum[n] + a[2 n] * pair[0] + a[2 n + 1] * pair[1] for bf16 pairs: products are exact, the odd one
// is added first.
FARTHING_INLINE Float dot_bf16(Float sum, Int a, uint32_t pair) {
  __m256i upper = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
  __m256i b = _mm256_set1_epi32(static_cast<int32_t>(pair));
  Float even_a = as_float(shift_left<16>(a));
  Float odd_a = as_float({_mm256_and_si256(a.low, upper), _mm256_and_si256(a.high, upper)});
  __m256 even_b = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
  __m256 odd_b = _mm256_castsi256_ps(_mm256_and_si256(b, upper));
  return fma(even_a, {even_b, even_b}, fma(odd_a, {odd_b, odd_b}, sum));
}

FARTHING_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
