// Factors of pairs for tiers without a dot product of bf16: a pair is two floats, so that nothing
// has to be taken apart where it is multiplied. The bits are those of dot_bf16.
constexpr int kPairFactorBytes = 8;

// Thirty-two numbers rounded to bf16, in order.
struct PairFactors {
  Float first, second;
};
FARTHING_INLINE Float rounded_bf16(Float x) {
  uint16_t rounded[kLanes];
  store_bf16(rounded, x);
  return load_bf16(rounded);
}
FARTHING_INLINE PairFactors to_pair_factors(Float first, Float second) {
  return {rounded_bf16(first), rounded_bf16(second)};
}
// sum[n] plus some two of the numbers.
FARTHING_INLINE Float add_pair_factors(Float sum, PairFactors factors) {
  return add(sum, add(factors.first, factors.second));
}
// sum[n] + a[2 n] * factor[0] + a[2 n + 1] * factor[1], the odd product added first.
FARTHING_INLINE Float dot_factor(Float sum, Int a, const uint8_t* factor) {
  float pair[2];
  memcpy(pair, factor, sizeof pair);
  Float even = as_float(shift_left<16>(a));
  Float odd = as_float(shift_left<16>(shift_right<16>(a)));
  return fma(even, set1(pair[0]), fma(odd, set1(pair[1]), sum));
}
