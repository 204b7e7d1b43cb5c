// Products of 8-bit activations and codes. Each group gives an exact integer sum, or one for each
// of its halves where these have scales of their own; times the scales it is added to the output's
// float accumulator.

FARTHING_INLINE int32_t load_quad(const int8_t* p) {
  int32_t quad;
  memcpy(&quad, p, 4);
  return quad;
}

constexpr int logarithm(int power) { return power <= 1 ? 0 : 1 + logarithm(power / 2); }

// A product's rows at one group of inputs: pointers into the first row, and how far apart rows lie.
struct Activations {
  const int8_t* codes;  // `inputs` apart
  const float* scale;   // `groups` apart, as the next two
  const float* scaled_sum;
  const int32_t* negative_sum;
  const int32_t* negative_half_sum;  // 2 * groups apart
  int64_t inputs;
  int64_t groups;
};

FARTHING_INLINE Activations activations_of(const Prepared& x, int row) {
  int64_t first = static_cast<int64_t>(row) * x.groups();
  return {reinterpret_cast<const int8_t*>(x.data) + static_cast<int64_t>(row) * x.inputs,
          x.scale + first,
          x.scaled_sum + first,
          x.negative_sum + first,
          x.negative_half_sum + 2 * first,
          x.inputs,
          x.groups()};
}

FARTHING_INLINE void next_group(Activations* x) {
  x->codes += kGroup;
  x->scale += 1;
  x->scaled_sum += 1;
  x->negative_sum += 1;
  x->negative_half_sum += 2;
}

// What the zero points add to an integer sum: - zero point * sum of the row's codes.
template <Format F>
FARTHING_INLINE Int start_of(const Activations& x, int m, int half, Int zeros) {
  if constexpr (has_zeros(F)) return mul_int(zeros, set1_int(x.negative_sum[m * x.groups]));
  constexpr int zero = zero_point(F) - (takes_any_byte(F) ? kByteCentre : 0);
  if constexpr (zero == 0) return set1_int(0);
  int32_t sum =
      has_halves(F) ? x.negative_half_sum[2 * m * x.groups + half] : x.negative_sum[m * x.groups];
  return shift_left<logarithm(zero)>(set1_int(sum));
}

// Step J of four: two quads of a group's inputs into the integer sums.
template <Format F, int J, int Rows, int Tiles>
FARTHING_INLINE void add_quads(const Activations& x, const uint8_t* group, int64_t tile_stride,
                               Int (&dots)[Rows][Tiles]) {
  Bytes first[Tiles], second[Tiles];
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; t++) {
    load_codes<F, J>(group + t * tile_stride, &first[t], &second[t]);
  }
#pragma GCC unroll 8
  for (int m = 0; m < Rows; m++) {
    const int8_t* quads = x.codes + m * x.inputs + 8 * J;
    int32_t first_quad = load_quad(quads), second_quad = load_quad(quads + 4);
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) {
      dots[m][t] = dot_codes<F>(dots[m][t], first[t], second[t], first_quad, second_quad);
    }
  }
}

// Integer sums begin, over the inputs of a group or of its half `half`.
template <Format F, int Rows, int Tiles>
FARTHING_INLINE void start_dots(const Activations& x, const uint8_t* spans, int64_t tile_stride,
                                int half, Int (&dots)[Rows][Tiles]) {
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; t++) {
    Int zeros = {};
    if constexpr (has_zeros(F)) zeros = load_u8(spans + t * tile_stride + kHalfBytes);
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) dots[m][t] = start_of<F>(x, m, half, zeros);
  }
}

// A group's integer sums into the outputs.
template <Format F, int Rows, int Tiles>
FARTHING_INLINE void add_group(const Activations& x, Scales at, int64_t tile_stride,
                               const Int (&dots)[Rows][Tiles], Float (&sums)[Rows][Tiles]) {
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; t++, at = {at.span + tile_stride, at.part + tile_stride}) {
    Float scale = load_scale<F>(at, 0);
    // The levels of NF4 count 127 times; a scale of the whole row comes last.
    if (F == Format::NF4) scale = mul(scale, set1(1.0f / 127));
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) {
      Float factor = set1(x.scale[m * x.groups]);
      if (F != Format::INT8) factor = mul(scale, factor);
      sums[m][t] = fma(to_float(dots[m][t]), factor, sums[m][t]);
    }
    if constexpr (has_minimum(F)) {
      Float minimum = load_minimum<F>(at, 0);
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) {
        sums[m][t] = fma(minimum, set1(x.scaled_sum[m * x.groups]), sums[m][t]);
      }
    }
  }
}

// The integer sums of a group's half, scaled, into the group's float sums, the first half beginning
// them.
template <Format F, int Rows, int Tiles>
FARTHING_INLINE void add_half(const Activations& x, Scales at, int64_t tile_stride, int half,
                              const Int (&dots)[Rows][Tiles], Float (&sums)[Rows][Tiles]) {
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; t++, at = {at.span + tile_stride, at.part + tile_stride}) {
    Float scale = load_scale<F>(at, half);
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) {
      Float dot = to_float(dots[m][t]);
      sums[m][t] = half == 0 ? mul(dot, scale) : fma(dot, scale, sums[m][t]);
    }
    if constexpr (has_minimum(F)) {
      Float negative = sub(zero(), load_minimum<F>(at, half));
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) {
        Float sum = to_float(set1_int(x.negative_half_sum[2 * m * x.groups + half]));
        sums[m][t] = fma(negative, sum, sums[m][t]);
      }
    }
  }
}

// An integer sum is exact: 32 products of at most 255 * 127 fit a float's 24 bits.
template <Format F, int Rows, int Tiles>
FARTHING_INLINE void int8_product(const Product& p) {
  Activations x = activations_of(*p.x, p.row);
  int groups = p.x->groups();
  int shift = layout(F).span ? span_shift(F, 0) : p.span_shift;
  const uint8_t *weights = p.weights, *ahead = p.ahead, *ahead_end = ahead;
  Float sums[Rows][Tiles];
#pragma GCC unroll 8
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) sums[m][t] = zero();
  }
  for (int g = 0; g < groups; g++) {
    for (ahead_end += p.ahead_step; ahead < ahead_end; ahead += 64) prefetch(ahead);
    Scales at = {p.weights + spans_offset<F>(groups) + (g >> shift) * layout(F).span_bytes,
                 p.weights + parts_offset<F>(groups) + g * layout(F).part_bytes};
    Int dots[Rows][Tiles];
    start_dots<F>(x, at.span, p.tile_stride, 0, dots);
    add_quads<F, 0>(x, weights, p.tile_stride, dots);
    add_quads<F, 1>(x, weights, p.tile_stride, dots);
    if constexpr (has_halves(F)) {
      Float group[Rows][Tiles];
      add_half<F>(x, at, p.tile_stride, 0, dots, group);
      start_dots<F>(x, at.span, p.tile_stride, 1, dots);
      add_quads<F, 2>(x, weights, p.tile_stride, dots);
      add_quads<F, 3>(x, weights, p.tile_stride, dots);
      add_half<F>(x, at, p.tile_stride, 1, dots, group);
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) {
        Float factor = set1(x.scale[m * x.groups]);
#pragma GCC unroll 8
        for (int t = 0; t < Tiles; t++) sums[m][t] = fma(group[m][t], factor, sums[m][t]);
      }
    } else {
      add_quads<F, 2>(x, weights, p.tile_stride, dots);
      add_quads<F, 3>(x, weights, p.tile_stride, dots);
      add_group<F>(x, at, p.tile_stride, dots, sums);
    }
    weights += code_bytes(F);
    next_group(&x);
  }
  if constexpr (F == Format::INT8) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) {
      const uint8_t* span = p.weights + t * p.tile_stride + spans_offset<F>(groups);
      Float scale = load_scale<F>({span, nullptr}, 0);
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) sums[m][t] = mul(sums[m][t], scale);
    }
  }
  store_sums(p, sums);
}
