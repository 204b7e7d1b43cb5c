// Rotary position embedding.

void angles(int32_t position, const double* frequencies, int count, float* cosine, float* sine) {
  for (int i = 0; i < count; ++i) {
    double s, c;
    sin_cos(position * frequencies[i], &s, &c);
    cosine[i] = static_cast<float>(c);
    sine[i] = static_cast<float>(s);
  }
}

void rope(float* x, const float* cosine, const float* sine, int count) {
  for (int i = 0; i < count; i += kLanes) {
    int n = count - i < kLanes ? count - i : kLanes;
    Float c = load_first(cosine + i, n);
    Float s = load_first(sine + i, n);
    Float low = load_first(x + i, n);
    Float high = load_first(x + count + i, n);
    store_first(x + i, sub(mul(low, c), mul(high, s)), n);
    store_first(x + count + i, add(mul(high, c), mul(low, s)), n);
  }
}
