// The sampler's arithmetic in float64: Philox, exp, log and Gumbel noise.
//
// Plain C++ without fused products, so that every tier, and sampler.cpp beside them, gets the same
// bits, however the compiler cuts the loops into vectors: a sampled token depends on its logits and
// its key, never on the tier. Included inside a namespace of the including unit's own.

static inline uint64_t double_to_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  return bits;
}

static inline double bits_to_double(uint64_t bits) {
  double x;
  memcpy(&x, &bits, 8);
  return x;
}

// e^x to about one unit in the last place for |x| <= 708; 0 for everything else, NaN included.
// n = round(x / ln 2) is read from the low bits of a sum with 1.5 * 2^52; then the Taylor
// polynomial of degree 13 on |r| <= ln(2) / 2, whose remainder is below 2^-57. The choices are made
// on bits: compilers keep floating-point comparisons, which may trap, out of vectors.
static inline double exp_double(double x) {
  constexpr double kShift = 6755399441055744.0;
  constexpr uint64_t kMagnitude = 0x7fffffffffffffffu;
  constexpr uint64_t kLargest = 0x4086200000000000u;  // bits of 708.0
  const uint64_t bits = double_to_bits(x);
  const uint64_t inside = uint64_t{0} - ((bits & kMagnitude) <= kLargest);
  x = bits_to_double(bits & inside);
  const double shifted = x * 1.44269504088896340736 + kShift;
  const double n = shifted - kShift;
  double r = x - n * 6.93147180369123816490e-01;
  r -= n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1.0;
  const double power = bits_to_double((double_to_bits(shifted) << 52) + 0x3ff0000000000000u);
  return bits_to_double(double_to_bits(p * power) & inside);
}

// ln x to about one unit in the last place, near x = 1 too, for positive normal x.
// x = 2^e m with m in [sqrt(1/2), sqrt(2)); with f = m - 1 (exact) and s = f / (2 + f),
// ln m = 2 atanh(s) = f - (f^2 / 2 - s (f^2 / 2 + R)), R = 2 (s^2 / 3 + s^4 / 5 + ...), cut below
// 2^-60: the large terms are the exact ones.
static inline double log_double(double x) {
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu;  // bits of sqrt(1/2), rounded up
  constexpr double kShift = 6755399441055744.0;
  // Adding 1023 * 2^52 keeps the shifted exponent positive; it is taken off again as a double.
  const uint64_t offset = double_to_bits(x) - kRootHalf + (uint64_t{1023} << 52);
  const double e = bits_to_double((offset >> 52) + double_to_bits(kShift)) - kShift - 1023.0;
  const double m = bits_to_double((offset & 0x000fffffffffffffu) + kRootHalf);
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double q = 2.0 / 23.0;
  q = q * z + 2.0 / 21.0;
  q = q * z + 2.0 / 19.0;
  q = q * z + 2.0 / 17.0;
  q = q * z + 2.0 / 15.0;
  q = q * z + 2.0 / 13.0;
  q = q * z + 2.0 / 11.0;
  q = q * z + 2.0 / 9.0;
  q = q * z + 2.0 / 7.0;
  q = q * z + 2.0 / 5.0;
  q = q * z + 2.0 / 3.0;
  const double half = 0.5 * f * f;
  const double rest = half - (s * (half + q * z) + e * 1.90821492927058770002e-10);
  return e * 6.93147180369123816490e-01 - (rest - f);
}

// Gumbel noise of a 32-bit word: -ln(-ln u) with u = (word + 1/2) / 2^32, which float64 holds
// exactly, so that its logarithm is accurate at both ends. engine/sampler.py says why 32 bits.
static inline float gumbel_of(uint32_t word) {
  constexpr double kTwo52 = 4503599627370496.0;
  const double whole = bits_to_double(double_to_bits(kTwo52) + word) - kTwo52;
  const double u = (whole + 0.5) * (1.0 / 4294967296.0);
  return static_cast<float>(-log_double(-log_double(u)));
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011) of `count` counters (first + i, position, choice,
// 0): word j of counter i at words[4 i + j]. One counter's ten rounds stand in the loop's body,
// which is how compilers put counters into lanes.
static inline void philox(uint64_t seed, uint32_t choice, uint32_t position, uint32_t first,
                          int count, uint32_t* words) {
  const uint32_t key_low = static_cast<uint32_t>(seed);
  const uint32_t key_high = static_cast<uint32_t>(seed >> 32);
  for (int i = 0; i < count; ++i) {
    uint32_t a = first + static_cast<uint32_t>(i), b = position, c = choice, d = 0;
    for (uint32_t round = 0; round < 10; ++round) {
      const uint64_t left = uint64_t{0xD2511F53u} * a;
      const uint64_t right = uint64_t{0xCD9E8D57u} * c;
      a = static_cast<uint32_t>(right >> 32) ^ b ^ (key_low + round * 0x9E3779B9u);
      b = static_cast<uint32_t>(right);
      c = static_cast<uint32_t>(left >> 32) ^ d ^ (key_high + round * 0xBB67AE85u);
      d = static_cast<uint32_t>(left);
    }
    words[4 * i] = a;
    words[4 * i + 1] = b;
    words[4 * i + 2] = c;
    words[4 * i + 3] = d;
  }
}
