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

FARTHING_INLINE void skip_groups(Activations* x, int count) {
  x->codes += count * kGroup;
  x->scale += count;
  x->scaled_sum += count;
  x->negative_sum += count;
  x->negative_half_sum += 2 * count;
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
template <Format F, int J, class Weights, int Rows, int Tiles>
FARTHING_INLINE void add_quads(const Activations& x, const Weights& weights,
                               Int (&dots)[Rows][Tiles]) {
  Bytes first[Tiles], second[Tiles];
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; t++) load_step<J>(weights, t, &first[t], &second[t]);
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
template <Format F, class Weights, int Rows, int Tiles>
FARTHING_INLINE void start_dots(const Activations& x, const Weights& weights, int half,
                                Int (&dots)[Rows][Tiles]) {
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; t++) {
    Int zeros = {};
    if constexpr (has_zeros(F)) zeros = zeros_of(weights, t);
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) dots[m][t] = start_of<F>(x, m, half, zeros);
  }
}

// A group's integer sums into the outputs.
template <Format F, class Weights, int Rows, int Tiles>
FARTHING_INLINE void add_group(const Activations& x, const Weights& weights,
                               const Int (&dots)[Rows][Tiles], Float (&sums)[Rows][Tiles]) {
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; t++) {
    Float scale = scale_of(weights, t, 0);
    // The levels of NF4 count 127 times; a scale of the whole row comes last.
    if (F == Format::NF4) scale = mul(scale, set1(1.0f / 127));
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) {
      Float factor = set1(x.scale[m * x.groups]);
      if (F != Format::INT8) factor = mul(scale, factor);
      sums[m][t] = fma(to_float(dots[m][t]), factor, sums[m][t]);
    }
    if constexpr (has_minimum(F)) {
      Float minimum = minimum_of(weights, t, 0);
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) {
        sums[m][t] = fma(minimum, set1(x.scaled_sum[m * x.groups]), sums[m][t]);
      }
    }
  }
}

// The integer sums of a group's half, scaled, into the group's float sums, the first half beginning
// them.
template <Format F, class Weights, int Rows, int Tiles>
FARTHING_INLINE void add_half(const Activations& x, const Weights& weights, int half,
                              const Int (&dots)[Rows][Tiles], Float (&sums)[Rows][Tiles]) {
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; t++) {
    Float scale = scale_of(weights, t, half);
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) {
      Float dot = to_float(dots[m][t]);
      sums[m][t] = half == 0 ? mul(dot, scale) : fma(dot, scale, sums[m][t]);
    }
    if constexpr (has_minimum(F)) {
      Float negative = sub(zero(), minimum_of(weights, t, half));
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) {
        Float sum = to_float(set1_int(x.negative_half_sum[2 * m * x.groups + half]));
        sums[m][t] = fma(negative, sum, sums[m][t]);
      }
    }
  }
}

// An integer sum is exact: 32 products of at most 255 * 127 fit a float's 24 bits.
template <Format F, class Weights, int Rows, int Tiles>
FARTHING_INLINE void multiply_group(const Activations& x, const Weights& weights,
                                    Float (&sums)[Rows][Tiles]) {
  Int dots[Rows][Tiles];
  start_dots<F>(x, weights, 0, dots);
  add_quads<F, 0>(x, weights, dots);
  add_quads<F, 1>(x, weights, dots);
  if constexpr (has_halves(F)) {
    Float group[Rows][Tiles];
    add_half<F>(x, weights, 0, dots, group);
    start_dots<F>(x, weights, 1, dots);
    add_quads<F, 2>(x, weights, dots);
    add_quads<F, 3>(x, weights, dots);
    add_half<F>(x, weights, 1, dots, group);
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) {
      Float factor = set1(x.scale[m * x.groups]);
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; t++) sums[m][t] = fma(group[m][t], factor, sums[m][t]);
    }
  } else {
    add_quads<F, 2>(x, weights, dots);
    add_quads<F, 3>(x, weights, dots);
    add_group<F>(x, weights, dots, sums);
  }
}

// The groups [p.group, p.group_end); after the first ones, sums go on from what `out` holds.
template <Format F, template <Format> class Weights, int Rows, int Tiles>
FARTHING_INLINE void int8_product(const Product& p) {
  Activations x = activations_of(*p.x, p.row);
  skip_groups(&x, p.group);
  Weights<F> weights = Weights<F>::start(p);
  const uint8_t *ahead = p.ahead, *ahead_end = ahead;
  Float sums[Rows][Tiles];
#pragma GCC unroll 8
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) {
      bool begins = Weights<F>::kAllGroups || p.group == 0;
      sums[m][t] = begins ? zero() : load(p.out + m * p.stride + t * kTile);
    }
  }
  for (int g = p.group; g < p.group_end; g++) {
    for (ahead_end += p.ahead_step; ahead < ahead_end; ahead += 64) prefetch(ahead);
    multiply_group<F>(x, weights, sums);
    next_group(&weights);
    skip_groups(&x, 1);
  }
  if constexpr (F == Format::INT8) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) {
      const uint8_t* span = p.weights + t * p.tile_stride + spans_offset<F>(p.x->groups());
      Float scale = load_scale<F>({span, nullptr}, 0);
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) sums[m][t] = mul(sums[m][t], scale);
    }
  }
  store_sums(p, sums);
}
