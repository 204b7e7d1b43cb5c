// Prepared rows times packed matrices. An output is a sum over the groups (INT8) or the inputs
// (BF16, FP32) in rising order in one accumulator of its own, whatever rows and tiles are computed
// beside it.

// Where one product reads and writes: `tiles` neighbouring tiles from `weights` on, rows from
// `row`.
struct Product {
  const uint8_t* weights;  // packed tiles, or unpacked ones
  int64_t tile_stride;
  const uint8_t *ahead, *ahead_end;  // what to fetch meanwhile, for the products that follow
  int64_t ahead_step;                // bytes of it for each group
  int span_shift;                    // group g lies in span g >> span_shift
  const Prepared* x;
  int row;
  float* out;
  int64_t stride;
  int group, group_end;  // of inputs; all of them unless tiles are unpacked
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
#include "weights.inl"

template <Format F, int Rows, int Tiles>
void product(const Product& p) {
  if constexpr (mode_of(F) == Mode::INT8) {
    int8_product<F, PackedWeights, Rows, Tiles>(p);
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

// From so many rows on, unpacking laborious formats is worth its stores; measured. There are three
// parts or more then, each of more than half the most rows.
constexpr int unpacking_rows(Format format) {
  return kRegisters >= 32 ? 6 * most_rows(format) : 2 * most_rows(format) + 1;
}

template <Format F, int Rows, int Tiles>
constexpr ProductFunction unpacked_function() {
  if constexpr (Rows <= most_rows(F) && Rows > most_rows(F) / 2 && Tiles <= most_tiles(F, Rows)) {
    return int8_product<F, UnpackedWeights, Rows, Tiles>;
  } else {
    return nullptr;
  }
}
template <Format F, int Tiles>
constexpr ProductFunctions unpacked_of() {
  return {{nullptr, nullptr, unpacked_function<F, 3, Tiles>(), unpacked_function<F, 4, Tiles>(),
           unpacked_function<F, 5, Tiles>(), unpacked_function<F, 6, Tiles>()}};
}
template <Format F>
constexpr ProductFunctions kUnpackedProducts[2] = {unpacked_of<F, 1>(), unpacked_of<F, 2>()};

// Rows whose activations stay in the second-level cache while the tiles pass.
constexpr int64_t kRowBlockBytes = 384 * 1024;

// A block of rows: its part i is rows [rows * i / parts, rows * (i + 1) / parts) from `row` on.
struct RowParts {
  int row, rows, parts;
  float* out;
};

// All parts of a block; `p` lacks only what differs between them. Each part fetches its share of
// what the products that follow read.
FARTHING_INLINE void each_part(Product* p, const ProductFunctions& products,
                               const RowParts& block) {
  int64_t share = p->ahead_step * (p->group_end - p->group);
  for (int part = 0; part < block.parts; part++, p->ahead += share) {
    int from = block.rows * part / block.parts, to = block.rows * (part + 1) / block.parts;
    if (p->ahead >= p->ahead_end) p->ahead_step = 0;
    p->row = block.row + from;
    p->out = block.out + from * p->stride;
    products.of[to - from - 1](*p);
  }
}

// As each_part over `tiles` packed tiles, of which every few groups are unpacked for all parts.
template <Format F>
void each_unpacked_part(Product* p, int tiles, const RowParts& block) {
  UnpackedTile<F> unpacked[2];
  const uint8_t* packed = p->weights;
  p->weights = reinterpret_cast<const uint8_t*>(unpacked);
  int groups = p->group_end;
  for (; p->group < groups; p->group = p->group_end) {
    p->group_end = groups - p->group < kUnpackedGroups ? groups : p->group + kUnpackedGroups;
    for (int t = 0; t < tiles; t++) {
      unpack_tile(packed + t * p->tile_stride, groups, p->group, p->group_end, &unpacked[t]);
    }
    each_part(p, kUnpackedProducts<F>[tiles - 1], block);
  }
  p->weights = packed;
}

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
      Product p;
      p.weights = weights;
      p.tile_stride = bytes;
      p.ahead = weights + size;
      p.ahead_end = weights + 2 * size;
      p.ahead_step = size > 64 * slots ? (size + slots - 1) / slots : 64;
      p.span_shift = span_shift(F, matrix.group);
      p.x = &x;
      p.stride = stride;
      p.group = 0;
      p.group_end = x.groups();
      RowParts block = {first, rows, parts, out + (first - row) * stride + (t - tile) * kTile};
      if constexpr (is_laborious(F)) {
        if (rows >= unpacking_rows(F)) {
          each_unpacked_part<F>(&p, tiles, block);
          continue;
        }
      }
      each_part(&p, kProducts<F>[tiles - 1], block);
    }
  }
}

void linear(const Matrix& matrix, const Prepared& x, int row, int row_end, int tile, int tile_end,
            float* out, int64_t stride) {
  with_format(matrix.format, [&](auto f) {
    linear_of<decltype(f)::value>(matrix, x, row, row_end, tile, tile_end, out, stride);
  });
}
