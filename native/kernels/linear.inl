// Prepared rows times packed matrices. An output is a sum over the groups (INT8) or the inputs
// (BF16, FP32) in rising order in one accumulator of its own, whatever rows and tiles are computed
// beside it.

// Where one product reads and writes: `tiles` neighbouring tiles from `weights` on, rows from
// `row`.
struct Product {
  const uint8_t* weights;
  int64_t tile_stride;
  const uint8_t* ahead;  // what to fetch meanwhile, for the products that follow
  int64_t ahead_step;    // bytes of it for each group
  const Prepared* x;
  int row;
  float* out;
  int64_t stride;
};

// Step j of a group's four: the codes of quads j and 4 + j of every output of a tile.
template <Format F>
FARTHING_INLINE void load_codes(const uint8_t* codes, int j, Bytes* low, Bytes* high) {
  if constexpr (F == Format::Q8_0) {
    *low = load_bytes(codes + j * kQuadBytes);
    *high = load_bytes(codes + (4 + j) * kQuadBytes);
    return;
  }
  Bytes both = load_bytes(codes + j * kQuadBytes);
  *low = low_nibbles(both);
  *high = high_nibbles(both);
  if constexpr (has_fifth_bits(F)) {
    uint64_t masks[2];
    memcpy(masks, codes + kNibbleBytes + j * 16, 16);
    *low = add_fifth_bits(*low, masks[0]);
    *high = add_fifth_bits(*high, masks[1]);
  }
}

template <Format F>
FARTHING_INLINE Int dot_codes(Int sum, Bytes codes, int32_t quad) {
  return F == Format::Q8_0 ? dot4(sum, codes, quad) : dot4_small(sum, codes, quad);
}

FARTHING_INLINE int32_t load_quad(const int8_t* p) {
  int32_t quad;
  memcpy(&quad, p, 4);
  return quad;
}

// A group's integer sum is exact: 32 products of at most 255 * 127 fit a float's 24 bits.
template <Format F, int Rows, int Tiles>
FARTHING_INLINE void int8_product(const Product& p) {
  const Prepared& x = *p.x;
  int groups = x.groups();
  const int8_t* codes =
      reinterpret_cast<const int8_t*>(x.data) + static_cast<int64_t>(p.row) * x.inputs;
  const int32_t* code_sums = x.sum + static_cast<int64_t>(p.row) * groups;
  const float* x_scales = x.scale + static_cast<int64_t>(p.row) * groups;
  const float* scaled_sums = x.scaled_sum + static_cast<int64_t>(p.row) * groups;
  const uint8_t* weights = p.weights;
  const uint8_t* planes = weights + groups * code_bytes(F);
  const uint8_t *ahead = p.ahead, *ahead_end = ahead;
  Float sums[Rows][Tiles];
#pragma GCC unroll 8
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) sums[m][t] = zero();
  }
  for (int g = 0; g < groups; g++) {
    for (ahead_end += p.ahead_step; ahead < ahead_end; ahead += 64) prefetch(ahead);
    Int dots[Rows][Tiles];
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) {
      Int start = set1_int(-zero_point(F) * code_sums[m * groups + g]);
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; t++) dots[m][t] = start;
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      Bytes low[Tiles], high[Tiles];
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; t++) {
        load_codes<F>(weights + t * p.tile_stride, j, &low[t], &high[t]);
      }
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) {
        int32_t quad = load_quad(codes + static_cast<int64_t>(m) * x.inputs + 4 * j);
#pragma GCC unroll 8
        for (int t = 0; t < Tiles; t++) dots[m][t] = dot_codes<F>(dots[m][t], low[t], quad);
      }
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) {
        int32_t quad = load_quad(codes + static_cast<int64_t>(m) * x.inputs + 16 + 4 * j);
#pragma GCC unroll 8
        for (int t = 0; t < Tiles; t++) dots[m][t] = dot_codes<F>(dots[m][t], high[t], quad);
      }
    }
    Float scales[Tiles];
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) {
      scales[t] = load_f16(reinterpret_cast<const uint16_t*>(planes + t * p.tile_stride));
    }
#pragma GCC unroll 8
    for (int m = 0; m < Rows; m++) {
      Float x_scale = set1(x_scales[m * groups + g]);
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; t++) {
        sums[m][t] = fma(to_float(dots[m][t]), mul(scales[t], x_scale), sums[m][t]);
      }
    }
    if constexpr (has_minimum(F)) {
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; t++) {
        Float minimum = load_f16(
            reinterpret_cast<const uint16_t*>(planes + t * p.tile_stride + groups * kScaleBytes));
#pragma GCC unroll 8
        for (int m = 0; m < Rows; m++) {
          sums[m][t] = fma(minimum, set1(scaled_sums[m * groups + g]), sums[m][t]);
        }
      }
    }
    weights += code_bytes(F);
    planes += kScaleBytes;
    codes += kGroup;
  }
#pragma GCC unroll 8
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) store(p.out + m * p.stride + t * kTile, sums[m][t]);
  }
}

// sum plus four bytes of activations, one input (FP32) or two (BF16), times every output's weights.
template <Format F>
FARTHING_INLINE Float float_step(Float sum, const uint8_t* weights, const uint8_t* x) {
  if constexpr (F == Format::BF16) {
    uint32_t pair;
    memcpy(&pair, x, 4);
    return dot_bf16(sum, reinterpret_cast<const uint16_t*>(weights), pair);
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
#pragma GCC unroll 8
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) sums[m][t] = zero();
  }
  for (int g = 0; g < p.x->groups(); g++) {
    for (ahead_end += p.ahead_step; ahead < ahead_end; ahead += 64) prefetch(ahead);
    for (int k = 0; k < kGroup; k += inputs) {
#pragma GCC unroll 8
      for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 8
        for (int t = 0; t < Tiles; t++) {
          sums[m][t] = float_step<F>(sums[m][t], weights + t * p.tile_stride, x + m * row_bytes);
        }
      }
      weights += kTile * inputs * weight_bytes(F);
      x += 4;
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; t++) store(p.out + m * p.stride + t * kTile, sums[m][t]);
  }
}

template <Format F, int Rows, int Tiles>
void product(const Product& p) {
  if constexpr (is_quantised(F)) {
    int8_product<F, Rows, Tiles>(p);
  } else {
    float_product<F, Rows, Tiles>(p);
  }
}

// A few rows wait for memory, which delivers one tile after the other best. More rows wait for the
// arithmetic: as many of them share an unpacked tile as the registers hold sums for.
constexpr int kMostRows = kRegisters >= 32 ? 6 : 4;
constexpr int kMostTiles = kRegisters >= 32 ? 2 : 1;
constexpr int kFewRows = 3;

using ProductFunction = void (*)(const Product&);

template <Format F, int Rows, int Tiles>
constexpr ProductFunction product_function() {
  // Parts of more than kFewRows rows may have that many: seven rows are three and four.
  constexpr bool used = Tiles == 1 || (Tiles <= kMostTiles && Rows >= kFewRows);
  if constexpr (Rows <= kMostRows && used) {
    return product<F, Rows, Tiles>;
  } else {
    return nullptr;
  }
}

// [tiles - 1][rows - 1]
template <Format F>
constexpr ProductFunction kProducts[2][6] = {
    {product_function<F, 1, 1>(), product_function<F, 2, 1>(), product_function<F, 3, 1>(),
     product_function<F, 4, 1>(), product_function<F, 5, 1>(), product_function<F, 6, 1>()},
    {product_function<F, 1, 2>(), product_function<F, 2, 2>(), product_function<F, 3, 2>(),
     product_function<F, 4, 2>(), product_function<F, 5, 2>(), product_function<F, 6, 2>()},
};

// Rows whose activations stay in the second-level cache while the tiles pass.
constexpr int64_t kRowBlockBytes = 384 * 1024;

template <Format F>
FARTHING_INLINE void linear_of(const Matrix& matrix, const Prepared& x, int row, int row_end,
                               int tile, int tile_end, float* out, int64_t stride) {
  int64_t bytes = tile_bytes(F, matrix.inputs);
  int64_t fitting = kRowBlockBytes / (x.inputs * mode_bytes(x.mode));
  int block = static_cast<int>(fitting < kMostRows ? kMostRows : fitting);
  for (int first = row; first < row_end; first += block) {
    int rows = row_end - first < block ? row_end - first : block;
    int parts = (rows + kMostRows - 1) / kMostRows;
    int widest = rows <= kFewRows ? 1 : kMostTiles;
    for (int t = tile, tiles; t < tile_end; t += tiles) {
      tiles = tile_end - t < widest ? 1 : widest;
      const uint8_t* weights = matrix.data + t * bytes;
      int64_t size = tiles * bytes, slots = static_cast<int64_t>(parts) * x.groups();
      int64_t step = size > 64 * slots ? (size + slots - 1) / slots : 64;
      for (int part = 0; part < parts; part++) {
        int from = rows * part / parts, to = rows * (part + 1) / parts;
        int64_t begin = part * step * x.groups();  // each part fetches its share of the next tiles
        Product p = {weights,
                     bytes,
                     weights + size + begin,
                     begin < size ? step : 0,
                     &x,
                     first + from,
                     out + (first - row + from) * stride + (t - tile) * kTile,
                     stride};
        kProducts<F>[tiles - 1][to - from - 1](p);
      }
    }
  }
}

void linear(const Matrix& matrix, const Prepared& x, int row, int row_end, int tile, int tile_end,
            float* out, int64_t stride) {
  with_format(matrix.format, [&](auto f) {
    linear_of<decltype(f)::value>(matrix, x, row, row_end, tile, tile_end, out, stride);
  });
}
