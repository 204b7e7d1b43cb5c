// Passes over a whole row of logits: the largest, the sum of exponentials, noise.
#include "noise.inl"

int argmax(const float* x, int count) {
  // Sixteen running maxima; the comparison is false for NaN, which is therefore never taken.
  constexpr int kStripes = 16;
  float largest[kStripes];
  for (int j = 0; j < kStripes; ++j) largest[j] = -__builtin_inff();
  int i = 0;
  for (; i + kStripes <= count; i += kStripes) {
    for (int j = 0; j < kStripes; ++j) largest[j] = x[i + j] > largest[j] ? x[i + j] : largest[j];
  }
  for (int j = 0; i + j < count; ++j) largest[j] = x[i + j] > largest[j] ? x[i + j] : largest[j];
  float best = largest[0];
  for (int j = 1; j < kStripes; ++j) best = largest[j] > best ? largest[j] : best;

  constexpr int kSpan = 64;
  for (i = 0; i < count; i += kSpan) {
    const int end = i + kSpan < count ? i + kSpan : count;
    int equal = 0;
    if (end - i == kSpan) {
      for (int j = 0; j < kSpan; ++j) equal |= x[i + j] == best;
      if (!equal) continue;
    }
    for (int j = i; j < end; ++j) {
      if (x[j] == best) return j;
    }
  }
  return -1;
}

// One term of the sum: 1 where the element is the shift itself, infinite or not.
static inline double exp_above(float x, float shift) {
  uint32_t a, b;
  memcpy(&a, &x, 4);
  memcpy(&b, &shift, 4);
  const uint64_t differ = uint64_t{0} - (a != b);
  const double difference = static_cast<double>(x) - static_cast<double>(shift);
  return exp_double(bits_to_double(double_to_bits(difference) & differ));
}

// In float64, in sixteen interleaved sums that are added in pairs. NaN adds nothing.
double sum_exp(const float* x, int count, float shift) {
  constexpr int kStripes = 16;
  double sum[kStripes] = {};
  int i = 0;
  for (; i + kStripes <= count; i += kStripes) {
    for (int j = 0; j < kStripes; ++j) sum[j] += exp_above(x[i + j], shift);
  }
  for (int j = 0; i + j < count; ++j) sum[j] += exp_above(x[i + j], shift);
  for (int width = kStripes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
  }
  return sum[0];
}

// A word below the result certainly gives noise below `least`: the word of u = exp(-exp(-least)),
// less what the rounding of noise to float32 and of this computation could amount to.
static inline uint32_t least_word(float least) {
  const double lower = static_cast<double>(least) - 1e-4;
  if (!(lower > -3.2)) return 0;  // the smallest noise there is, -ln(33 ln 2), is -3.13
  return static_cast<uint32_t>(exp_double(-exp_double(-lower)) * 4294967295.0);
}

bool gumbel(const NoiseKey& key, uint32_t first_id, int count, float least, float* noise) {
  uint32_t words[kNoiseTile];
  philox(key.seed, key.choice, key.position, first_id / 4, kNoiseTile / 4, words);
  const uint32_t threshold = least_word(least);
  int reached = 0;
  for (int i = 0; i < kNoiseTile; ++i) reached |= words[i] >= threshold;
  if (!reached) return false;
  if (count == kNoiseTile) {
    for (int i = 0; i < kNoiseTile; ++i) noise[i] = gumbel_of(words[i]);
  } else {
    for (int i = 0; i < count; ++i) noise[i] = gumbel_of(words[i]);
  }
  return true;
}
