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
  int span_shift;        // group g lies in span g >> span_shift
  const Prepared* x;
  int row;
  float* out;
  int64_t stride;
};

// Calls body(Constant<0>()) ... body(Constant<Count - 1>()).
template <int I>
struct Constant {
  static constexpr int value = I;
};
template <int Count, int I = 0, class Body>
FARTHING_INLINE void each_constant(Body body) {
  if constexpr (I < Count) {
    body(Constant<I>());
    each_constant<Count, I + 1>(body);
  }
}

template <int Rows, int Tiles>
FARTHING_INLINE void store_sums(const Product& p, const Float (&sums)[Rows][Tiles]) {
#pragma GCC unroll 16
  for (int m = 0; m < Rows; m++) {
#pragma GCC unroll 16
    for (int t = 0; t < Tiles; t++) store(p.out + m * p.stride + t * kTile, sums[m][t]);
  }
}

#include "linear_float.inl"
#include "linear_int8.inl"

template <Format F, int Rows, int Tiles>
void product(const Product& p) {
  if constexpr (mode_of(F) == Mode::INT8) {
    int8_product<F, Rows, Tiles>(p);
  } else if constexpr (has_codes(F)) {
    level_product<F, Rows, Tiles>(p);
  } else {
    float_product<F, Rows, Tiles>(p);
  }
}

// A few rows wait for memory, which delivers one tile after the other best. More rows wait for the
// arithmetic: as many of them share a loaded tile as the registers hold sums for.
constexpr int kFewRows = 3;

constexpr int most_rows(Format format) { return kRegisters < 32 ? 4 : has_codes(format) ? 6 : 12; }

// A sum of numbers is one chain of additions, an input at a time unless the tier has an instruction
// for two of bf16: a single tile's would be slower than memory.
constexpr bool is_slow_chain(Format format) {
  return mode_of(format) == Mode::FP32 || (mode_of(format) == Mode::BF16 && kRegisters < 32);
}

// Tiles at a time in a product of so many rows.
constexpr int most_tiles(Format format, int rows) {
  if (rows > kFewRows) return kRegisters >= 32 ? 2 : 1;
  return is_slow_chain(format) && kRegisters >= 8 * rows ? 2 : 1;
}

using ProductFunction = void (*)(const Product&);

template <Format F, int Rows, int Tiles>
constexpr ProductFunction product_function() {
  // More than kFewRows rows may be cut into parts of that many: seven into three and four.
  constexpr bool used =
      Tiles <= most_tiles(F, Rows) || (Rows == kFewRows && Tiles <= most_tiles(F, kFewRows + 1));
  if constexpr (Rows <= most_rows(F) && used) {
    return product<F, Rows, Tiles>;
  } else {
    return nullptr;
  }
}

struct ProductFunctions {
  ProductFunction of[12];  // [rows - 1]
};
template <Format F, int Tiles>
constexpr ProductFunctions products_of() {
  return {{product_function<F, 1, Tiles>(), product_function<F, 2, Tiles>(),
           product_function<F, 3, Tiles>(), product_function<F, 4, Tiles>(),
           product_function<F, 5, Tiles>(), product_function<F, 6, Tiles>(),
           product_function<F, 7, Tiles>(), product_function<F, 8, Tiles>(),
           product_function<F, 9, Tiles>(), product_function<F, 10, Tiles>(),
           product_function<F, 11, Tiles>(), product_function<F, 12, Tiles>()}};
}
template <Format F>
constexpr ProductFunctions kProducts[2] = {products_of<F, 1>(), products_of<F, 2>()};

// Rows whose activations stay in the second-level cache while the tiles pass.
constexpr int64_t kRowBlockBytes = 384 * 1024;

template <Format F>
FARTHING_INLINE void linear_of(const Matrix& matrix, const Prepared& x, int row, int row_end,
                               int tile, int tile_end, float* out, int64_t stride) {
  int64_t bytes = tile_bytes(F, matrix.group, matrix.inputs);
  int64_t fitting = kRowBlockBytes / (x.inputs * mode_bytes(x.mode));
  constexpr int most = most_rows(F);
  int block = static_cast<int>(fitting < most ? most : fitting);
  for (int first = row; first < row_end; first += block) {
    int rows = row_end - first < block ? row_end - first : block;
    int parts = (rows + most - 1) / most;
    int widest = most_tiles(F, rows);
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
                     span_shift(F, matrix.group),
                     &x,
                     first + from,
                     out + (first - row + from) * stride + (t - tile) * kTile,
                     stride};
        kProducts<F>[tiles - 1].of[to - from - 1](p);
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
