// Element by element over one row. A last vector that is not full reads zeros beyond the end.

// out[i] = f(a[i], b[i]) for vectors.
template <class Function>
FARTHING_INLINE void each_pair(const float* a, const float* b, int count, float* out, Function f) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, f(load(a + i), load(b + i)));
  int rest = count - i;
  if (rest > 0) store_first(out + i, f(load_first(a + i, rest), load_first(b + i, rest)), rest);
}

// The squares are summed in 64 lanes, lane i over i, i + 64, ..., whatever the length.
FARTHING_INLINE float sum_of_squares(const float* x, int count) {
  constexpr int kSums = 4;
  Float sums[kSums] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + kSums * kLanes <= count; i += kSums * kLanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; s++) {
      Float v = load(x + i + s * kLanes);
      sums[s] = fma(v, v, sums[s]);
    }
  }
  for (int s = 0; i < count; i += kLanes, s++) {
    Float v = load_first(x + i, count - i < kLanes ? count - i : kLanes);
    sums[s] = fma(v, v, sums[s]);
  }
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// x / sqrt(mean(x^2) + epsilon) * gain
void rmsnorm(const float* x, const float* gain, float epsilon, int count, float* out) {
  float mean = sum_of_squares(x, count) / static_cast<float>(count);
  Float factor = set1(1.0f / __builtin_sqrtf(mean + epsilon));
  each_pair(x, gain, count, out, [=](Float v, Float g) { return mul(mul(v, factor), g); });
}

void add_rows(const float* a, const float* b, int count, float* out) {
  each_pair(a, b, count, out, [](Float u, Float v) { return add(u, v); });
}

void scale_row(const float* x, float factor, int count, float* out) {
  Float f = set1(factor);
  each_pair(x, x, count, out, [=](Float v, Float) { return mul(v, f); });
}

// x / (1 + exp(-slope)): x times the logistic function of slope.
FARTHING_INLINE Float times_sigmoid(Float x, Float slope) {
  return div(x, add(set1(1.0f), exp(sub(zero(), slope))));
}

// SiLU(gate) * up, SiLU(x) = x / (1 + exp(-x))
void swiglu(const float* gate, const float* up, int count, float* out) {
  each_pair(gate, up, count, out, [](Float g, Float u) { return mul(times_sigmoid(g, g), u); });
}

// GELU(gate) * up in the tanh approximation, x / 2 * (1 + tanh(t)) with
// t = sqrt(2 / pi) * (x + 0.044715 x^3). (1 + tanh(t)) / 2 is the logistic function of 2 t, which
// loses nothing where tanh is close to -1.
void geglu(const float* gate, const float* up, int count, float* out) {
  each_pair(gate, up, count, out, [](Float g, Float u) {
    Float cubic = fma(mul(mul(g, g), set1(0.044715f)), g, g);
    return mul(times_sigmoid(g, mul(cubic, set1(1.5957691216f))), u);
  });
}
