// The rotation that spreads a head's outliers over all its dimensions, so that four bits hold what
// is left of them. It is the same for keys and queries: scores stay what they are.

// Of lane i in row b: -1 where bit b of i is set, else 1.
struct LaneSigns {
  alignas(64) float of[4][kLanes];
};
constexpr LaneSigns lane_signs() {
  LaneSigns signs = {};
  for (int b = 0; b < 4; ++b) {
    for (int i = 0; i < kLanes; ++i) signs.of[b][i] = i >> b & 1 ? -1.0f : 1.0f;
  }
  return signs;
}
constexpr LaneSigns kLaneSigns = lane_signs();

// The sums and differences of lanes whose numbers differ in one bit.
template <int Bit>
FARTHING_INLINE Float butterfly(Float x) {
  return add(exchange_lanes<1 << Bit>(x), mul(x, load(kLaneSigns.of[Bit])));
}

// x := H x / sqrt(count), H being the Hadamard matrix in Sylvester's order, entry (i, j) the sign
// of
// (-1)^(number of bits that i and j share). count is a power of two; a sum is added in the order
// of that recursion, lowest bit first.
void rotate(float* x, int count) {
  Float factor = set1(1.0f / __builtin_sqrtf(static_cast<float>(count)));
  for (int i = 0; i < count; i += kLanes) {
    int n = count < kLanes ? count : kLanes;
    Float v = butterfly<0>(mul(load_first(x + i, n), factor));
    if (count > 2) v = butterfly<1>(v);
    if (count > 4) v = butterfly<2>(v);
    if (count > 8) v = butterfly<3>(v);
    store_first(x + i, v, n);
  }
  for (int half = kLanes; half < count; half *= 2) {
    for (int i = 0; i < count; i += 2 * half) {
      for (int j = i; j < i + half; j += kLanes) {
        Float first = load(x + j), second = load(x + j + half);
        store(x + j, add(first, second));
        store(x + j + half, sub(first, second));
      }
    }
  }
}
