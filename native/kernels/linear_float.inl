// Products of activations that are numbers: an output is summed over the inputs in rising order.

// sum plus four bytes of activations, one input (FP32) or two (BF16), times every output's weights.
template <Format F>
FARTHING_INLINE Float float_step(Float sum, const uint8_t* weights, const uint8_t* x) {
  if constexpr (F == Format::BF16) {
    uint32_t pair;
    memcpy(&pair, x, 4);
    return dot_bf16(sum, load_pairs(reinterpret_cast<const uint16_t*>(weights)), pair);
  } else {
    float factor;
    memcpy(&factor, x, 4);
    Float w = F == Format::F32 ? load(reinterpret_cast<const float*>(weights))
                               : load_f16(reinterpret_cast<const uint16_t*>(weights));
    return fma(w, set1(factor), sum);
  }
}

template <Format F, int Rows, int Tiles>
FARTHING_INLINE void float_product(const Product& p) {
  constexpr int inputs = F == Format::BF16 ? 2 : 1;  // in a step
  int64_t row_bytes = p.x->inputs * mode_bytes(p.x->mode);
  const uint8_t* x = p.x->data + p.row * row_bytes;
  const uint8_t* weights = p.weights;
  const uint8_t *ahead = p.ahead, *ahead_end = ahead;
  Float sums[Rows][Tiles];
#pragma GCC unroll 16
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 16
    for (int t = 0; t < Tiles; t++) sums[m][t] = zero();
  }
  for (int g = 0; g < p.x->groups(); g++) {
    for (ahead_end += p.ahead_step; ahead < ahead_end; ahead += 64) prefetch(ahead);
    for (int k = 0; k < kGroup; k += inputs) {
#pragma GCC unroll 16
      for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 16
        for (int t = 0; t < Tiles; t++) {
          sums[m][t] = float_step<F>(sums[m][t], weights + t * p.tile_stride, x + m * row_bytes);
        }
      }
      weights += kTile * inputs * weight_bytes(F);
      x += 4;
    }
  }
  store_sums(p, sums);
}

// NF4 with its exact levels: weight = level * absmax, rounded in float32 as its definition does.
template <Format F, int Rows, int Tiles>
FARTHING_INLINE void level_product(const Product& p) {
  int groups = p.x->groups();
  int64_t inputs = p.x->inputs;
  const float* x = reinterpret_cast<const float*>(p.x->data) + p.row * inputs;
  const uint8_t* weights = p.weights;
  const uint8_t *ahead = p.ahead, *ahead_end = ahead;
  Float sums[Rows][Tiles];
#pragma GCC unroll 16
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 16
    for (int t = 0; t < Tiles; t++) sums[m][t] = zero();
  }
  for (int g = 0; g < groups; g++) {
    for (ahead_end += p.ahead_step; ahead < ahead_end; ahead += 64) prefetch(ahead);
    int64_t span = spans_offset<F>(groups) + (g >> p.span_shift) * layout(F).span_bytes;
    Float scales[Tiles];
#pragma GCC unroll 16
    for (int t = 0; t < Tiles; t++) {
      scales[t] = load_scale<F>({p.weights + t * p.tile_stride + span, nullptr}, 0);
    }
    for (int j = 0; j < kQuads / 2; j++) {
      Bytes codes[Tiles];
#pragma GCC unroll 16
      for (int t = 0; t < Tiles; t++) codes[t] = load_bytes(weights + t * p.tile_stride);
      // Input b of the lower quad at bit 8 b of a lane, that of the upper one four bits above.
      each_constant<8>([&](auto input) __attribute__((always_inline)) {
        constexpr int k = decltype(input)::value, shift = k % 4 * 8 + k / 4 * 4;
#pragma GCC unroll 16
        for (int t = 0; t < Tiles; t++) {
          Float w = mul(look_up_lanes<shift>(codes[t], kNormalLevels), scales[t]);
#pragma GCC unroll 16
          for (int m = 0; m < Rows; m++) {
            sums[m][t] = fma(w, set1(x[m * inputs + k]), sums[m][t]);
          }
        }
      });
      weights += kQuadBytes;
      x += 8;
    }
  }
  store_sums(p, sums);
}
