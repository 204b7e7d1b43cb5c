// Sixteen-lane vectors on NEON: four of the machine's vectors of four. Names
// and meanings are those of simd_avx512.inl, and so is the order of every
// reduction. Each operation rounds as the one of simd_avx2.inl does, so that
// the two tiers give the same bits. The unit includes the products of bytes,
// simd_neon_dotprod.inl or simd_neon_i8mm.inl, after this.
#define FARTHING_INLINE static inline __attribute__((always_inline))

constexpr int kLanes = 16;
constexpr int kRegisters = 8;  // how many Floats the registers hold

struct Float {  // sixteen floats
  float32x4_t v[4];
};
struct Int {  // sixteen int32
  int32x4_t v[4];
};
struct Bytes {  // sixty-four bytes: four consecutive inputs of each of sixteen
                // outputs
  uint8x16_t v[4];
};

// The vector whose part i is f(i).
template <class Vector, class Function>
FARTHING_INLINE Vector each_part(Function f) {
  return {{f(0), f(1), f(2), f(3)}};
}

FARTHING_INLINE Float set1(float x) {
  float32x4_t part = vdupq_n_f32(x);
  return {{part, part, part, part}};
}
FARTHING_INLINE Float zero() { return set1(0.0f); }
FARTHING_INLINE Float load(const float* p) {
  return each_part<Float>([=](int i) { return vld1q_f32(p + 4 * i); });
}
FARTHING_INLINE void store(float* p, Float x) {
  vst1q_f32(p, x.v[0]);
  vst1q_f32(p + 4, x.v[1]);
  vst1q_f32(p + 8, x.v[2]);
  vst1q_f32(p + 12, x.v[3]);
}

// The first `count` (0 ... 16) lanes; the others read as zero, and are not
// touched in memory.
FARTHING_INLINE Float load_first(const float* p, int count) {
  if (count == kLanes) return load(p);
  float lanes[kLanes] = {};
  for (int i = 0; i < count; i++) lanes[i] = p[i];
  return load(lanes);
}
FARTHING_INLINE void store_first(float* p, Float x, int count) {
  if (count == kLanes) return store(p, x);
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < count; i++) p[i] = lanes[i];
}
// Lanes [from, to) of `a`, the others of `b`.
FARTHING_INLINE Float select(int from, int to, Float a, Float b) {
  return each_part<Float>([&](int i) {
    int32x4_t lane = int32x4_t{0, 1, 2, 3} + vdupq_n_s32(4 * i);
    uint32x4_t inside =
        vandq_u32(vcgeq_s32(lane, vdupq_n_s32(from)), vcltq_s32(lane, vdupq_n_s32(to)));
    return vbslq_f32(inside, a.v[i], b.v[i]);
  });
}

FARTHING_INLINE Float add(Float a, Float b) {
  return each_part<Float>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
FARTHING_INLINE Float sub(Float a, Float b) {
  return each_part<Float>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
FARTHING_INLINE Float mul(Float a, Float b) {
  return each_part<Float>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
FARTHING_INLINE Float div(Float a, Float b) {
  return each_part<Float>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
// a * b + c, rounded once.
FARTHING_INLINE Float fma(Float a, Float b, Float c) {
  return each_part<Float>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// As in the x86 instructions, the second where either is a NaN.
FARTHING_INLINE float32x4_t max_part(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
FARTHING_INLINE Float max(Float a, Float b) {
  return each_part<Float>([&](int i) { return max_part(a.v[i], b.v[i]); });
}
FARTHING_INLINE Float min(Float a, Float b) {
  return each_part<Float>(
      [&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
FARTHING_INLINE Float abs(Float a) {
  return each_part<Float>([&](int i) { return vabsq_f32(a.v[i]); });
}
// To the nearest integer, halves to even.
FARTHING_INLINE Float round(Float a) {
  return each_part<Float>([&](int i) { return vrndnq_f32(a.v[i]); });
}
// 2^n for integral n in [-126, 127], 0 for -127.
FARTHING_INLINE Float exp2_integral(Float n) {
  return each_part<Float>([&](int i) {
    int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
  });
}
// a * 2^n for integral n <= 0; 0 for n below -126. A NaN in both stays one.
FARTHING_INLINE Float times_exp2(Float a, Float n) {
  return mul(a, exp2_integral(max(set1(-127.0f), n)));
}
// a where condition < bound, b elsewhere.
FARTHING_INLINE Float where_less(Float condition, Float bound, Float a, Float b) {
  return each_part<Float>(
      [&](int i) { return vbslq_f32(vcltq_f32(condition.v[i], bound.v[i]), a.v[i], b.v[i]); });
}
// Lanes added in one fixed order: halves, then quarters, then pairs.
FARTHING_INLINE float reduce_add(Float a) {
  float32x4_t q = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  return (q[0] + q[2]) + (q[1] + q[3]);
}
FARTHING_INLINE float reduce_max(Float a) {
  float32x4_t q = max_part(max_part(a.v[0], a.v[2]), max_part(a.v[1], a.v[3]));
  q = max_part(q, vextq_f32(q, q, 2));
  return max_part(q, vrev64q_f32(q))[0];
}

// Lane i gets lane i ^ Distance.
template <int Distance>
FARTHING_INLINE Float exchange_lanes(Float a) {
  return each_part<Float>([=](int i) {
    if constexpr (Distance == 1) return vrev64q_f32(a.v[i]);
    if constexpr (Distance == 2) return vextq_f32(a.v[i], a.v[i], 2);
    return a.v[i ^ Distance / 4];
  });
}

FARTHING_INLINE Int set1_int(int32_t x) {
  int32x4_t part = vdupq_n_s32(x);
  return {{part, part, part, part}};
}
FARTHING_INLINE Int add_int(Int a, Int b) {
  return each_part<Int>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
FARTHING_INLINE Int sub_int(Int a, Int b) {
  return each_part<Int>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
FARTHING_INLINE Int max_int(Int a, Int b) {
  return each_part<Int>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
// a * b for a in [0, 2^15) and b in [-2^15, 2^15).
FARTHING_INLINE Int mul_int(Int a, Int b) {
  return each_part<Int>([&](int i) { return vmulq_s32(a.v[i], b.v[i]); });
}
template <int Bits>
FARTHING_INLINE Int shift_left(Int a) {
  return each_part<Int>([&](int i) { return vshlq_n_s32(a.v[i], Bits); });
}
// Zeros come in from above.
template <int Bits>
FARTHING_INLINE Int shift_right(Int a) {
  return each_part<Int>([&](int i) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), Bits));
  });
}
// Copies of the sign do.
template <int Bits>
FARTHING_INLINE Int shift_right_signed(Int a) {
  return each_part<Int>([&](int i) { return vshrq_n_s32(a.v[i], Bits); });
}
template <int Bits>
FARTHING_INLINE Int low_bits(Int a) {
  return each_part<Int>([&](int i) { return vandq_s32(a.v[i], vdupq_n_s32((1 << Bits) - 1)); });
}
FARTHING_INLINE Int load_u8(const uint8_t* p) {
  uint8x16_t bytes = vld1q_u8(p);
  uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
  auto part = [](uint32x4_t x) { return vreinterpretq_s32_u32(x); };
  return {{part(vmovl_u16(vget_low_u16(low))), part(vmovl_high_u16(low)),
           part(vmovl_u16(vget_low_u16(high))), part(vmovl_high_u16(high))}};
}
FARTHING_INLINE Float to_float(Int a) {
  return each_part<Float>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
// Nearest integers, halves to even; INT32_MIN for what an int32 cannot hold,
// where the instruction would give the nearest there is, and 0 for NaN.
FARTHING_INLINE Int to_int(Float a) {
  return each_part<Int>([&](int i) {
    uint32x4_t fits = vandq_u32(vcgeq_f32(a.v[i], vdupq_n_f32(-0x1p31f)),
                                vcltq_f32(a.v[i], vdupq_n_f32(0x1p31f)));
    return vbslq_s32(fits, vcvtnq_s32_f32(a.v[i]), vdupq_n_s32(INT32_MIN));
  });
}
// The bits of the floats, and back.
FARTHING_INLINE Int as_int(Float a) {
  return each_part<Int>([&](int i) { return vreinterpretq_s32_f32(a.v[i]); });
}
FARTHING_INLINE Float as_float(Int a) {
  return each_part<Float>([&](int i) { return vreinterpretq_f32_s32(a.v[i]); });
}
FARTHING_INLINE int32_t reduce_add_int(Int a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[2]), vaddq_s32(a.v[1], a.v[3])));
}
FARTHING_INLINE int32_t reduce_max_int(Int a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[2]), vmaxq_s32(a.v[1], a.v[3])));
}
FARTHING_INLINE void store_int(int32_t* p, Int x) {
  vst1q_s32(p, x.v[0]);
  vst1q_s32(p + 4, x.v[1]);
  vst1q_s32(p + 8, x.v[2]);
  vst1q_s32(p + 12, x.v[3]);
}
// Lane i is the sum, or the largest, of the lanes of a[i].
FARTHING_INLINE Int reduce_add_each(const Int (&a)[kLanes]) {
  auto sum = [&](int i) {
    return vaddq_s32(vaddq_s32(a[i].v[0], a[i].v[1]), vaddq_s32(a[i].v[2], a[i].v[3]));
  };
  return each_part<Int>([&](int i) {
    int32x4_t first = vpaddq_s32(sum(4 * i), sum(4 * i + 1));
    return vpaddq_s32(first, vpaddq_s32(sum(4 * i + 2), sum(4 * i + 3)));
  });
}
FARTHING_INLINE Int reduce_max_each(const Int (&a)[kLanes]) {
  auto largest = [&](int i) {
    return vmaxq_s32(vmaxq_s32(a[i].v[0], a[i].v[1]), vmaxq_s32(a[i].v[2], a[i].v[3]));
  };
  return each_part<Int>([&](int i) {
    int32x4_t first = vpmaxq_s32(largest(4 * i), largest(4 * i + 1));
    return vpmaxq_s32(first, vpmaxq_s32(largest(4 * i + 2), largest(4 * i + 3)));
  });
}

FARTHING_INLINE float f16_to_float(uint16_t x) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0);
}
FARTHING_INLINE Float load_f16(const uint16_t* p) {
  return each_part<Float>(
      [=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
FARTHING_INLINE void store_f16(uint16_t* p, Float x) {
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
FARTHING_INLINE Float load_bf16(const uint16_t* p) {
  return each_part<Float>(
      [=](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
// The upper halves of floats rounded to nearest even. A NaN keeps its upper
// half, made quiet; a subnormal becomes zero, as in the instruction of AVX-512.
FARTHING_INLINE uint16x4_t round_bf16(float32x4_t x) {
  uint32x4_t bits = vreinterpretq_u32_f32(x);
  uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  uint32x4_t sign = vandq_u32(bits, vdupq_n_u32(0x80000000));
  uint32x4_t magnitude = veorq_u32(bits, sign);
  uint32x4_t nan = vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000));
  uint32x4_t subnormal = vcltq_u32(magnitude, vdupq_n_u32(0x00800000));
  return vshrn_n_u32(vbslq_u32(subnormal, sign, vbslq_u32(nan, quiet, up)), 16);
}
// Round to nearest even; NaN stays a NaN.
FARTHING_INLINE void store_bf16(uint16_t* p, Float x) {
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, round_bf16(x.v[i]));
}
FARTHING_INLINE Float load_s8(const int8_t* p) {
  int8x16_t bytes = vld1q_s8(p);
  int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
// Nearest integers, halves to even; x within [-127, 127].
FARTHING_INLINE void store_s8(int8_t* p, Float x) {
  auto words = [&](int i) { return vqmovn_s32(vcvtnq_s32_f32(x.v[i])); };
  vst1_s8(p, vqmovn_s16(vcombine_s16(words(0), words(1))));
  vst1_s8(p + 8, vqmovn_s16(vcombine_s16(words(2), words(3))));
}

FARTHING_INLINE Bytes load_bytes(const uint8_t* p) {
  return each_part<Bytes>([=](int i) { return vld1q_u8(p + 16 * i); });
}
FARTHING_INLINE void store_bytes(uint8_t* p, Bytes a) {
  for (int i = 0; i < 4; i++) vst1q_u8(p + 16 * i, a.v[i]);
}
FARTHING_INLINE Bytes low_nibbles(Bytes a) {
  return each_part<Bytes>([&](int i) { return vandq_u8(a.v[i], vdupq_n_u8(15)); });
}
FARTHING_INLINE Bytes high_nibbles(Bytes a) {
  return each_part<Bytes>([&](int i) { return vshrq_n_u8(a.v[i], 4); });
}
template <int I>
FARTHING_INLINE uint8x16_t bit_pair(uint8x16_t a) {
  if constexpr (I == 0) {
    return vandq_u8(a, vdupq_n_u8(3));
  } else {
    return vandq_u8(vshrq_n_u8(a, 2 * I), vdupq_n_u8(3));
  }
}
// The pair of bits I (0 ... 3) of every byte: bits 2 I and 2 I + 1.
template <int I>
FARTHING_INLINE Bytes bit_pairs(Bytes a) {
  return each_part<Bytes>([&](int i) { return bit_pair<I>(a.v[i]); });
}
// Adds 16 times the pair of bits I of every byte of `pairs` to bytes below 16.
template <int I>
FARTHING_INLINE Bytes add_bit_pairs(Bytes a, Bytes pairs) {
  return each_part<Bytes>(
      [&](int i) { return vorrq_u8(a.v[i], vshlq_n_u8(bit_pair<I>(pairs.v[i]), 4)); });
}
// Adds Value to the bytes whose bit is set in `mask`.
template <int Value>
FARTHING_INLINE Bytes add_where(Bytes a, uint64_t mask) {
  uint8x16_t masks = vcombine_u8(vcreate_u8(mask), vcreate_u8(0));
  uint8x16_t first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
  uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
  return each_part<Bytes>([&](int i) {
    uint8x16_t spread = vqtbl1q_u8(masks, vaddq_u8(first, vdupq_n_u8(static_cast<uint8_t>(2 * i))));
    return vaddq_u8(a.v[i], vandq_u8(vtstq_u8(spread, bit), vdupq_n_u8(Value)));
  });
}
// levels[byte] for bytes below 16.
FARTHING_INLINE Bytes look_up(Bytes a, const uint8_t* levels) {
  uint8x16_t table = vld1q_u8(levels);
  return each_part<Bytes>([&](int i) { return vqtbl1q_u8(table, a.v[i]); });
}
template <int Shift>
FARTHING_INLINE uint32x4_t shift_word(uint8x16_t a) {
  uint32x4_t words = vreinterpretq_u32_u8(a);
  if constexpr (Shift == 0) {
    return words;
  } else {
    return vshrq_n_u32(words, Shift);
  }
}
// levels[number] for the four bits from bit Shift on of each output's 32.
template <int Shift>
FARTHING_INLINE Float look_up_lanes(Bytes a, const float* levels) {
  uint8x16x4_t table = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(levels));
  return each_part<Float>([&](int i) {
    // Number n's bytes stand at 4 n ... 4 n + 3 of the table.
    uint32x4_t numbers = vandq_u32(shift_word<Shift>(a.v[i]), vdupq_n_u32(15));
    uint32x4_t starts = vmulq_n_u32(numbers, 0x04040404);
    uint32x4_t places = vaddq_u32(starts, vdupq_n_u32(0x03020100));
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(places)));
  });
}

// Thirty-two 16-bit numbers, a lane holding two of them.
FARTHING_INLINE Int load_pairs(const uint16_t* p) {
  return each_part<Int>([=](int i) { return vreinterpretq_s32_u16(vld1q_u16(p + 8 * i)); });
}
// sum[n] + a[2 n] * pair[0] + a[2 n + 1] * pair[1] for bf16 pairs: products are
// exact, the odd one is added first.
FARTHING_INLINE Float dot_bf16(Float sum, Int a, uint32_t pair) {
  uint32x4_t upper = vdupq_n_u32(0xffff0000u), b = vdupq_n_u32(pair);
  float32x4_t even_b = vreinterpretq_f32_u32(vshlq_n_u32(b, 16));
  float32x4_t odd_b = vreinterpretq_f32_u32(vandq_u32(b, upper));
  return each_part<Float>([&](int i) {
    uint32x4_t both = vreinterpretq_u32_s32(a.v[i]);
    float32x4_t even_a = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    float32x4_t odd_a = vreinterpretq_f32_u32(vandq_u32(both, upper));
    return vfmaq_f32(vfmaq_f32(sum.v[i], odd_a, odd_b), even_a, even_b);
  });
}

FARTHING_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
