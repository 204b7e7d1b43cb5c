// What a tier can reach at most, for `farthing bench`: a read that waits for memory alone, and
// products that wait for their own instructions alone. No part of any step.

template <bool Prefetched>
FARTHING_INLINE int32_t read_turns(const uint8_t* data, int64_t bytes, int64_t ahead) {
  Int even = set1_int(0), odd = set1_int(0);
  for (int64_t turn = 0; turn < bytes; turn += kReadTurn) {
#pragma GCC unroll 4
    for (int i = 0; i < kReadTurn; i += 128) {
      const uint8_t* p = data + turn + i;
      if constexpr (Prefetched) {
        prefetch(p + ahead);
        prefetch(p + ahead + 64);
      }
      even = add_int(even, as_int(load(reinterpret_cast<const float*>(p))));
      odd = add_int(odd, as_int(load(reinterpret_cast<const float*>(p + 64))));
    }
  }
  return reduce_add_int(add_int(even, odd));
}

int32_t read_all(const uint8_t* data, int64_t bytes, int64_t ahead) {
  return ahead > 0 ? read_turns<true>(data, bytes, ahead) : read_turns<false>(data, bytes, 0);
}

// A block of sums that stay in registers, and how often a round adds to them without a branch: the
// compiler copies sums where a loop turns. Chosen by measuring: as fast as the instructions issue.
constexpr int kPeakRows = kRegisters >= 32 ? 6 : kRegisters >= 8 ? 5 : 2;
constexpr int kPeakTiles = kRegisters >= 32 ? 3 : 1;
constexpr int kPeakTurns = kRegisters >= 32 ? 8 : 2;

// What each mode multiplies: sixteen outputs' weights of one load, with four bytes of activations,
// for INT8 twice.
// Weights of bytes from kWeight on are codes of 4 bits, or ordinary floats.
struct PeakInt8 {
  using Sum = Int;
  static constexpr int64_t kInputs = 8;
  static constexpr int kWeight = 0x01;
  FARTHING_INLINE Sum start(int i) { return set1_int(i); }
  FARTHING_INLINE Sum step(Sum sum, const uint8_t* weights, uint32_t x) {
    Bytes codes = load_bytes(weights);
    int32_t quad = static_cast<int32_t>(x);
    return dot8_small(sum, codes, codes, quad, quad);
  }
  FARTHING_INLINE void keep(Sum sum, float* out) { store(out, to_float(sum)); }
};
struct PeakBf16 {
  using Sum = Float;
  static constexpr int64_t kInputs = 2;
  static constexpr int kWeight = 0x3c;
  FARTHING_INLINE Sum start(int i) { return set1(static_cast<float>(i)); }
  FARTHING_INLINE Sum step(Sum sum, const uint8_t* weights, uint32_t x) {
    return dot_bf16(sum, load_pairs(reinterpret_cast<const uint16_t*>(weights)), x);
  }
  FARTHING_INLINE void keep(Sum sum, float* out) { store(out, sum); }
};
struct PeakFp32 {
  using Sum = Float;
  static constexpr int64_t kInputs = 1;
  static constexpr int kWeight = 0x3c;
  FARTHING_INLINE Sum start(int i) { return set1(static_cast<float>(i)); }
  FARTHING_INLINE Sum step(Sum sum, const uint8_t* weights, uint32_t x) {
    float factor;
    memcpy(&factor, &x, 4);
    return fma(load(reinterpret_cast<const float*>(weights)), set1(factor), sum);
  }
  FARTHING_INLINE void keep(Sum sum, float* out) { store(out, sum); }
};

// The operands come from the first-level cache each time, as a kernel's do.
template <class Peak>
FARTHING_INLINE int64_t multiply_rounds(int64_t rounds) {
  alignas(64) uint8_t weights[kPeakTiles][64];
  uint32_t x[kPeakRows];
  alignas(64) float out[kLanes];
  for (int t = 0; t < kPeakTiles; t++) memset(weights[t], Peak::kWeight + t, 64);
  for (int m = 0; m < kPeakRows; m++) x[m] = 0x3c003c01u + static_cast<uint32_t>(m);
  typename Peak::Sum sums[kPeakRows][kPeakTiles];
#pragma GCC unroll 8
  for (int m = 0; m < kPeakRows; m++) {
#pragma GCC unroll 8
    for (int t = 0; t < kPeakTiles; t++) sums[m][t] = Peak::start(1 + m * kPeakTiles + t);
  }
  for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 8
    for (int turn = 0; turn < kPeakTurns; turn++) {
      // Else the compiler would take the products out of the loop.
      __asm__ volatile("" : : "r"(weights), "r"(x) : "memory");
#pragma GCC unroll 8
      for (int m = 0; m < kPeakRows; m++) {
#pragma GCC unroll 8
        for (int t = 0; t < kPeakTiles; t++) sums[m][t] = Peak::step(sums[m][t], weights[t], x[m]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kPeakRows; m++) {
#pragma GCC unroll 8
    for (int t = 0; t < kPeakTiles; t++) {
      Peak::keep(sums[m][t], out);
      __asm__ volatile("" : : "r"(out) : "memory");
    }
  }
  return rounds * kPeakTurns * kPeakRows * kPeakTiles * kTile * Peak::kInputs;
}

int64_t multiply(Mode mode, int64_t rounds) {
  switch (mode) {
    case Mode::INT8:
      return multiply_rounds<PeakInt8>(rounds);
    case Mode::BF16:
      return multiply_rounds<PeakBf16>(rounds);
    case Mode::FP32:
      return multiply_rounds<PeakFp32>(rounds);
  }
  return 0;
}
