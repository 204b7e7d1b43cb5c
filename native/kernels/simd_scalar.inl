// Sixteen-lane vectors for any machine: four of the compiler's own vectors of four, which every
// baseline has instructions for. Names and meanings are those of simd_avx512.inl, and so is the
// order of every reduction; only fma rounds twice.
#define FARTHING_INLINE static inline __attribute__((always_inline))

constexpr int kLanes = 16;
constexpr int kByteCentre = 0;  // what dot4 takes off every byte
constexpr int kRegisters = 4;   // how many Floats the registers hold
constexpr int kParts = 4;

using FloatPart = float __attribute__((vector_size(16)));
using IntPart = int32_t __attribute__((vector_size(16)));
using WordPart = uint32_t __attribute__((vector_size(16)));
using HalfPart = uint16_t __attribute__((vector_size(8)));
using BytePart = int8_t __attribute__((vector_size(4)));

struct Float {  // sixteen floats
  FloatPart v[kParts];
};
struct Int {  // sixteen int32
  IntPart v[kParts];
};
struct Bytes {  // sixty-four bytes: four consecutive inputs of each of sixteen outputs
  WordPart v[kParts];
};

// The vector whose part i is f(i).
template <class Vector, class Function>
FARTHING_INLINE Vector each_part(Function f) {
  return {f(0), f(1), f(2), f(3)};
}
template <class Part>
FARTHING_INLINE Part load_part(const void* p) {
  Part part;
  memcpy(&part, p, sizeof part);
  return part;
}
template <class Part>
FARTHING_INLINE void store_part(void* p, Part part) {
  memcpy(p, &part, sizeof part);
}
// The same bits as another kind of number.
FARTHING_INLINE FloatPart floats(WordPart a) { return reinterpret_cast<FloatPart>(a); }
FARTHING_INLINE IntPart ints(FloatPart a) { return reinterpret_cast<IntPart>(a); }
FARTHING_INLINE WordPart words(FloatPart a) { return reinterpret_cast<WordPart>(a); }

FARTHING_INLINE Float set1(float x) {
  FloatPart part = {x, x, x, x};
  return {part, part, part, part};
}
FARTHING_INLINE Float zero() { return set1(0.0f); }
FARTHING_INLINE Float load(const float* p) {
  return each_part<Float>([=](int i) { return load_part<FloatPart>(p + 4 * i); });
}
FARTHING_INLINE void store(float* p, Float x) {
  for (int i = 0; i < kParts; i++) store_part(p + 4 * i, x.v[i]);
}

// The first `count` (0 ... 16) lanes; the others read as zero, and are not touched in memory.
FARTHING_INLINE Float load_first(const float* p, int count) {
  float lanes[kLanes] = {};
  for (int i = 0; i < count; i++) lanes[i] = p[i];
  return load(lanes);
}
FARTHING_INLINE void store_first(float* p, Float x, int count) {
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < count; i++) p[i] = lanes[i];
}
// Lanes [from, to) of `a`, the others of `b`.
FARTHING_INLINE Float select(int from, int to, Float a, Float b) {
  return each_part<Float>([&](int i) {
    IntPart lane = IntPart{0, 1, 2, 3} + 4 * i;
    return ((lane >= from) & (lane < to)) ? a.v[i] : b.v[i];
  });
}

FARTHING_INLINE Float add(Float a, Float b) {
  return each_part<Float>([&](int i) { return a.v[i] + b.v[i]; });
}
FARTHING_INLINE Float sub(Float a, Float b) {
  return each_part<Float>([&](int i) { return a.v[i] - b.v[i]; });
}
FARTHING_INLINE Float mul(Float a, Float b) {
  return each_part<Float>([&](int i) { return a.v[i] * b.v[i]; });
}
FARTHING_INLINE Float div(Float a, Float b) {
  return each_part<Float>([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c, rounded after the product and after the sum.
FARTHING_INLINE Float fma(Float a, Float b, Float c) {
  return each_part<Float>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// As in the x86 instructions, the second where either is a NaN.
FARTHING_INLINE Float max(Float a, Float b) {
  return each_part<Float>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
FARTHING_INLINE Float min(Float a, Float b) {
  return each_part<Float>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
FARTHING_INLINE FloatPart abs_part(FloatPart a) { return floats(words(a) & 0x7fffffff); }
FARTHING_INLINE Float abs(Float a) {
  return each_part<Float>([&](int i) { return abs_part(a.v[i]); });
}
// Below 2^23, adding 2^23 leaves no bits for a fraction.
FARTHING_INLINE FloatPart round_part(FloatPart a) {
  FloatPart rounded = (abs_part(a) + 0x1p23f) - 0x1p23f;
  return abs_part(a) < 0x1p23f ? floats(words(rounded) | (words(a) & 0x80000000)) : a;
}
// To the nearest integer, halves to even.
FARTHING_INLINE Float round(Float a) {
  return each_part<Float>([&](int i) { return round_part(a.v[i]); });
}
// Nearest integers, halves to even; INT32_MIN for what an int32 cannot hold.
FARTHING_INLINE IntPart to_int_part(FloatPart a) {
  IntPart fits = (a >= -0x1p31f) & (a < 0x1p31f);
  FloatPart fitting = floats(words(round_part(a)) & reinterpret_cast<WordPart>(fits));
  IntPart converted = __builtin_convertvector(fitting, IntPart);
  return converted | (~fits & INT32_MIN);
}
FARTHING_INLINE Int to_int(Float a) {
  return each_part<Int>([&](int i) { return to_int_part(a.v[i]); });
}
// 2^n for integral n in [-126, 127], 0 for -127.
FARTHING_INLINE Float exp2_integral(Float n) {
  return each_part<Float>(
      [&](int i) { return floats(reinterpret_cast<WordPart>(to_int_part(n.v[i]) + 127) << 23); });
}
// a * 2^n for integral n <= 0; 0 for n below -126. A NaN in both stays one.
FARTHING_INLINE Float times_exp2(Float a, Float n) {
  return mul(a, exp2_integral(max(set1(-127.0f), n)));
}
// a where condition < bound, b elsewhere.
FARTHING_INLINE Float where_less(Float condition, Float bound, Float a, Float b) {
  return each_part<Float>([&](int i) { return condition.v[i] < bound.v[i] ? a.v[i] : b.v[i]; });
}
// Lanes added in one fixed order: halves, then quarters, then pairs.
FARTHING_INLINE float reduce_add(Float a) {
  FloatPart q = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (q[0] + q[2]) + (q[1] + q[3]);
}
// Lane i gets lane i ^ Distance.
template <int Distance>
FARTHING_INLINE Float exchange_lanes(Float a) {
  return each_part<Float>([=](int i) {
    FloatPart p = a.v[i ^ Distance / 4];
    if constexpr (Distance == 1) return FloatPart{p[1], p[0], p[3], p[2]};
    if constexpr (Distance == 2) return FloatPart{p[2], p[3], p[0], p[1]};
    return p;
  });
}
FARTHING_INLINE float reduce_max(Float a) {
  Float swapped = {a.v[2], a.v[3], a.v[0], a.v[1]};
  Float h = max(a, swapped);
  FloatPart q = h.v[0] > h.v[1] ? h.v[0] : h.v[1];
  float even = q[0] > q[2] ? q[0] : q[2], odd = q[1] > q[3] ? q[1] : q[3];
  return even > odd ? even : odd;
}

FARTHING_INLINE Int set1_int(int32_t x) {
  IntPart part = {x, x, x, x};
  return {part, part, part, part};
}
FARTHING_INLINE Int add_int(Int a, Int b) {
  return each_part<Int>([&](int i) { return a.v[i] + b.v[i]; });
}
FARTHING_INLINE Int sub_int(Int a, Int b) {
  return each_part<Int>([&](int i) { return a.v[i] - b.v[i]; });
}
// a * b for a in [0, 2^15) and b in [-2^15, 2^15).
FARTHING_INLINE Int mul_int(Int a, Int b) {
  return each_part<Int>([&](int i) { return a.v[i] * b.v[i]; });
}
template <int Bits>
FARTHING_INLINE Int shift_left(Int a) {
  return each_part<Int>([&](int i) { return a.v[i] << Bits; });
}
// Zeros come in from above.
template <int Bits>
FARTHING_INLINE Int shift_right(Int a) {
  return each_part<Int>(
      [&](int i) { return reinterpret_cast<IntPart>(reinterpret_cast<WordPart>(a.v[i]) >> Bits); });
}
// Copies of the sign do.
template <int Bits>
FARTHING_INLINE Int shift_right_signed(Int a) {
  return each_part<Int>([&](int i) { return a.v[i] >> Bits; });
}
template <int Bits>
FARTHING_INLINE Int low_bits(Int a) {
  return each_part<Int>([&](int i) { return a.v[i] & ((1 << Bits) - 1); });
}
FARTHING_INLINE Int load_u8(const uint8_t* p) {
  using Part = uint8_t __attribute__((vector_size(4)));
  return each_part<Int>(
      [=](int i) { return __builtin_convertvector(load_part<Part>(p + 4 * i), IntPart); });
}
FARTHING_INLINE Int max_int(Int a, Int b) {
  return each_part<Int>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
FARTHING_INLINE Float to_float(Int a) {
  return each_part<Float>([&](int i) { return __builtin_convertvector(a.v[i], FloatPart); });
}
// The bits of the floats, and back.
FARTHING_INLINE Int as_int(Float a) {
  return each_part<Int>([&](int i) { return ints(a.v[i]); });
}
FARTHING_INLINE Float as_float(Int a) {
  return each_part<Float>([&](int i) { return reinterpret_cast<FloatPart>(a.v[i]); });
}
FARTHING_INLINE int32_t reduce_add_int(Int a) {
  IntPart q = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (q[0] + q[2]) + (q[1] + q[3]);
}
FARTHING_INLINE int32_t reduce_max_int(Int a) {
  int32_t largest = a.v[0][0];
  for (int i = 1; i < kLanes; i++) {
    int32_t lane = a.v[i / 4][i % 4];
    largest = lane > largest ? lane : largest;
  }
  return largest;
}
FARTHING_INLINE void store_int(int32_t* p, Int x) { memcpy(p, &x, sizeof x); }
// Lane i is the sum, or the largest, of the lanes of a[i].
FARTHING_INLINE Int reduce_add_each(const Int (&a)[kLanes]) {
  Int sums;
  for (int i = 0; i < kLanes; i++) sums.v[i / 4][i % 4] = reduce_add_int(a[i]);
  return sums;
}
FARTHING_INLINE Int reduce_max_each(const Int (&a)[kLanes]) {
  Int largest;
  for (int i = 0; i < kLanes; i++) largest.v[i / 4][i % 4] = reduce_max_int(a[i]);
  return largest;
}

// A half's exponent is rebased by a product with 2^112, exact for subnormals too.
FARTHING_INLINE FloatPart expand_f16(WordPart half) {
  WordPart magnitude = (half & 0x7fff) << 13;
  WordPart finite = words(floats(magnitude) * 0x1p112f);
  WordPart nan = reinterpret_cast<WordPart>(magnitude > 0x0f800000);
  WordPart special = magnitude | 0x7f800000 | (nan & 0x400000);
  return floats((magnitude < 0x0f800000 ? finite : special) | (half & 0x8000) << 16);
}
FARTHING_INLINE float f16_to_float(uint16_t x) { return expand_f16(WordPart{x})[0]; }
FARTHING_INLINE WordPart load_halves(const uint16_t* p) {
  return __builtin_convertvector(load_part<HalfPart>(p), WordPart);
}
FARTHING_INLINE Float load_f16(const uint16_t* p) {
  return each_part<Float>([=](int i) { return expand_f16(load_halves(p + 4 * i)); });
}
// Rounds to nearest even; a NaN keeps its upper bits, made quiet.
FARTHING_INLINE void store_f16(uint16_t* p, Float x) {
  for (int i = 0; i < kParts; i++) {
    WordPart magnitude = words(x.v[i]) & 0x7fffffff, sign = words(x.v[i]) >> 16 & 0x8000;
    // The sum with 1/2 has the step of a half's subnormals, 2^-24, in its last place.
    WordPart subnormal = words(floats(magnitude) + 0.5f) - 0x3f000000;
    WordPart normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    WordPart infinity = WordPart{} + 0x7c00;
    WordPart finite = magnitude < 0x38800000 ? subnormal : normal < 0x7c00 ? normal : infinity;
    WordPart nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    WordPart half = magnitude > 0x7f800000 ? nan : magnitude == 0x7f800000 ? infinity : finite;
    store_part(p + 4 * i, __builtin_convertvector(half | sign, HalfPart));
  }
}
FARTHING_INLINE Float load_bf16(const uint16_t* p) {
  return each_part<Float>([=](int i) { return floats(load_halves(p + 4 * i) << 16); });
}
// Round to nearest even. A NaN keeps its upper half, made quiet; a subnormal becomes zero, as in
// the instruction of AVX-512.
FARTHING_INLINE void store_bf16(uint16_t* p, Float x) {
  for (int i = 0; i < kParts; i++) {
    WordPart bits = words(x.v[i]), magnitude = bits & 0x7fffffff;
    WordPart rounded = bits + 0x7fff + (bits >> 16 & 1);
    WordPart finite = magnitude < 0x00800000 ? bits & 0x80000000 : rounded;
    WordPart half = (magnitude > 0x7f800000 ? bits | 0x400000 : finite) >> 16;
    store_part(p + 4 * i, __builtin_convertvector(half, HalfPart));
  }
}
FARTHING_INLINE Float load_s8(const int8_t* p) {
  return each_part<Float>([=](int i) {
    return __builtin_convertvector(__builtin_convertvector(load_part<BytePart>(p + 4 * i), IntPart),
                                   FloatPart);
  });
}
// Nearest integers, halves to even; x within [-127, 127].
FARTHING_INLINE void store_s8(int8_t* p, Float x) {
  for (int i = 0; i < kParts; i++) {
    store_part(p + 4 * i, __builtin_convertvector(to_int_part(x.v[i]), BytePart));
  }
}

FARTHING_INLINE Bytes load_bytes(const uint8_t* p) {
  return each_part<Bytes>([=](int i) { return load_part<WordPart>(p + 16 * i); });
}
FARTHING_INLINE void store_bytes(uint8_t* p, Bytes a) { memcpy(p, &a, sizeof a); }
FARTHING_INLINE Bytes low_nibbles(Bytes a) {
  return each_part<Bytes>([&](int i) { return a.v[i] & 0x0f0f0f0f; });
}
FARTHING_INLINE Bytes high_nibbles(Bytes a) {
  return each_part<Bytes>([&](int i) { return a.v[i] >> 4 & 0x0f0f0f0f; });
}
// The pair of bits I (0 ... 3) of every byte: bits 2 I and 2 I + 1.
template <int I>
FARTHING_INLINE Bytes bit_pairs(Bytes a) {
  return each_part<Bytes>([&](int i) { return a.v[i] >> 2 * I & 0x03030303; });
}
// Adds 16 times the pair of bits I of every byte of `pairs` to bytes below 16.
template <int I>
FARTHING_INLINE Bytes add_bit_pairs(Bytes a, Bytes pairs) {
  return each_part<Bytes>([&](int i) { return a.v[i] | (pairs.v[i] >> 2 * I & 0x03030303) << 4; });
}
// Adds Value to the bytes whose bit is set in `mask`.
template <int Value>
FARTHING_INLINE Bytes add_where(Bytes a, uint64_t mask) {
  return each_part<Bytes>([&](int i) {
    WordPart four = WordPart{0, 4, 8, 12};
    WordPart bits = (WordPart{} + static_cast<uint32_t>(mask >> 16 * i & 0xffff)) >> four;
    WordPart spread = (bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21;
    return a.v[i] + spread * Value;
  });
}
// levels[byte] for bytes below 16.
FARTHING_INLINE Bytes look_up(Bytes a, const uint8_t* levels) {
  uint8_t bytes[kLanes * 4];
  memcpy(bytes, &a, sizeof bytes);
  for (uint8_t& byte : bytes) byte = levels[byte];
  return each_part<Bytes>([&](int i) { return load_part<WordPart>(bytes + 16 * i); });
}
// levels[number] for the four bits from bit Shift on of each output's 32.
template <int Shift>
FARTHING_INLINE Float look_up_lanes(Bytes a, const float* levels) {
  return each_part<Float>([&](int i) {
    WordPart numbers = a.v[i] >> Shift & 15;
    return FloatPart{levels[numbers[0]], levels[numbers[1]], levels[numbers[2]],
                     levels[numbers[3]]};
  });
}
// a[2 n] * pair[0] + a[2 n + 1] * pair[1] for 16-bit numbers whose products fit 16 bits.
FARTHING_INLINE IntPart pair_products(WordPart a, uint32_t pair) {
  using ShortPart = int16_t __attribute__((vector_size(16)));
  ShortPart products =
      reinterpret_cast<ShortPart>(a) * reinterpret_cast<ShortPart>(WordPart{} + pair);
  IntPart both = reinterpret_cast<IntPart>(products);
  return (both << 16 >> 16) + (both >> 16);
}
// sum[n] + the four products of output n's unsigned bytes with the signed bytes of `quad`, exactly.
FARTHING_INLINE Int dot4(Int sum, Bytes a, int32_t quad) {
  int8_t b[4];
  memcpy(b, &quad, 4);
  uint32_t even = static_cast<uint16_t>(b[0]) | static_cast<uint32_t>(b[2]) << 16;
  uint32_t odd = static_cast<uint16_t>(b[1]) | static_cast<uint32_t>(b[3]) << 16;
  return each_part<Int>([&](int i) {
    return sum.v[i] + pair_products(a.v[i] & 0x00ff00ff, even) +
           pair_products(a.v[i] >> 8 & 0x00ff00ff, odd);
  });
}
// The same for the bytes of two vectors and a quad for each; all bytes are below 64, so that tiers
// without such an instruction may add four products in 16 bits.
FARTHING_INLINE Int dot8_small(Int sum, Bytes first, Bytes second, int32_t first_quad,
                               int32_t second_quad) {
  return dot4(dot4(sum, first, first_quad), second, second_quad);
}

// Thirty-two 16-bit numbers, a lane holding two of them.
FARTHING_INLINE Int load_pairs(const uint16_t* p) {
  return each_part<Int>([=](int i) { return load_part<IntPart>(p + 8 * i); });
}
// sum[n] + a[2 n] * pair[0] + a[2 n + 1] * pair[1] for bf16 pairs: products are exact, the odd one
// is added first.
FARTHING_INLINE Float dot_bf16(Float sum, Int a, uint32_t pair) {
  WordPart b = WordPart{} + pair;
  return each_part<Float>([&](int i) {
    WordPart both = reinterpret_cast<WordPart>(a.v[i]);
    FloatPart odd = floats(both & 0xffff0000) * floats(b & 0xffff0000);
    return floats(both << 16) * floats(b << 16) + (odd + sum.v[i]);
  });
}

FARTHING_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
