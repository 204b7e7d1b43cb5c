// The third phase of a tile: weighted sums of values.

// The elements that the first `count` sums multiply; the rest are zero, and not touched in memory.
template <class Values>
FARTHING_INLINE typename Values::Vector read_first(const typename Values::Element* p, int count) {
  typename Values::Element elements[kLanes * Values::kStep] = {};
  for (int i = 0; i < count * Values::kStep; ++i) elements[i] = p[i];
  return Values::read(elements);
}

// Which of a pair's positions the rows see; the other's value is taken for zero.
struct Both {
  template <class Vector>
  FARTHING_INLINE Vector seen(Vector x) {
    return x;
  }
};
struct EvenOnly {
  FARTHING_INLINE Int seen(Int x) { return low_bits<16>(x); }
};
struct OddOnly {
  FARTHING_INLINE Int seen(Int x) { return shift_left<16>(shift_right<16>(x)); }
};

// sums[row][n] += sum of weight[row][position] * value[position][column + n] over [from, to), which
// every row here sees. Width: how many n, whole vectors or a single vector's first few.
template <class Cache, int Rows, int Vectors, bool Whole>
void add_values(const Tile& tile, const uint8_t* weights, int column, int width, int from, int to,
                float* sums, int64_t stride) {
  using Values = typename Cache::Values;
  constexpr int kStep = Values::kStep;
  const int64_t head_dim = tile.head_dim;
  Float sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const float* p = sums + r * stride + column + v * kLanes;
      sum[r][v] = Whole ? load(p) : load_first(p, width);
    }
  }
  auto offset_of = [&](int position) __attribute__((always_inline)) {
    return (position % kBlock / kStep * head_dim + column) * kStep;
  };
  auto values_at = [&](int position) __attribute__((always_inline)) {
    return values_of<Cache>(tile.blocks[position / kBlock], head_dim) + offset_of(position);
  };
  auto add_step = [&](auto mask, const typename Values::Element* values,
                      int position) __attribute__((always_inline)) {
    const uint8_t* factors = weights + position / kStep * Values::kFactorBytes;
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      auto value = decltype(mask)::seen(Whole ? Values::read(values + v * kLanes * kStep)
                                              : read_first<Values>(values, width));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r)
        sum[r][v] = Values::multiply_add(sum[r][v], value, factors + r * kChunk * sizeof(float));
    }
  };
  if constexpr (kStep == 2) {
    if (from % 2 != 0) {
      add_step(OddOnly(), values_at(from), from);
      ++from;
    }
  }
  const int whole = to / kStep * kStep;
  for (int position = from; position < whole;) {
    int block = position / kBlock;
    int end = (block + 1) * kBlock < whole ? (block + 1) * kBlock : whole;
    const auto* values = values_at(position);
    const uint8_t* ahead =
        tile.parts[tile.block_end - tile.block + block - tile.block + kAhead<Cache>] +
        offset_of(position) * sizeof(*values);
    for (; position < end; position += kStep) {
      prefetch_bytes<Vectors * kLanes * kStep * sizeof(*values)>(ahead);
      add_step(Both(), values, position);
      values += head_dim * kStep;
      ahead += head_dim * kStep * sizeof(*values);
    }
  }
  if constexpr (kStep == 2) {
    if (from <= whole && whole < to) add_step(EvenOnly(), values_at(whole), whole);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      float* p = sums + r * stride + column + v * kLanes;
      Whole ? store(p, sum[r][v]) : store_first(p, sum[r][v], width);
    }
  }
}

// Goes over [from, to) once for every slice of head_dim, each as wide as still fits.
template <class Cache, int Rows, int Vectors = value_vectors(Rows)>
void add_slices(const Tile& tile, const uint8_t* weights, int column, int from, int to, float* sums,
                int64_t stride) {
  constexpr int kWidth = Vectors * kLanes;
  for (; column + kWidth <= tile.head_dim; column += kWidth)
    add_values<Cache, Rows, Vectors, true>(tile, weights, column, kWidth, from, to, sums, stride);
  if (column == tile.head_dim) return;
  if constexpr (Vectors > 1)
    add_slices<Cache, Rows, Vectors / 2>(tile, weights, column, from, to, sums, stride);
  else
    add_values<Cache, Rows, 1, false>(tile, weights, column, tile.head_dim - column, from, to, sums,
                                      stride);
}

// Adds [from, to), which rows [row, row_end) all see.
template <class Cache>
void sum_rows(const Tile& tile, int row, int row_end, int from, int to, float* sums,
              int64_t stride) {
  if (from >= to) return;
  with_size<kTileRows>(row_end - row, [&](auto rows) {
    add_slices<Cache, rows.value>(tile, tile.weights(row), 0, from, to, sums + row * stride,
                                  stride);
  });
}

// First what only some rows see of the beginning, those of a query at a time, then in one go what
// all see, then the end. Where queries differ these meet between pairs, never within one.
template <class Cache>
void sum_tile(const Tile& tile, float* sums, int64_t stride) {
  constexpr int kStep = Cache::Values::kStep;
  const int last = tile.rows - 1;
  int from = tile.from[last], to = tile.to[0];
  if (from != tile.from[0]) from = (from + kStep - 1) / kStep * kStep;
  if (to != tile.to[last]) to = to / kStep * kStep;
  const bool shared = from < to;
  if (!shared) from = to = kChunk;

  auto each_query = [&](auto add) {
    for (int row = 0, row_end; row < tile.rows; row = row_end) {
      for (row_end = row + 1; row_end < tile.rows && tile.from[row_end] == tile.from[row] &&
                              tile.to[row_end] == tile.to[row];)
        ++row_end;
      add(row, row_end);
    }
  };
  each_query([&](int row, int row_end) {
    int end = tile.to[row] < from ? tile.to[row] : from;
    sum_rows<Cache>(tile, row, row_end, tile.from[row], end, sums, stride);
  });
  if (!shared) return;
  sum_rows<Cache>(tile, 0, tile.rows, from, to, sums, stride);
  each_query([&](int row, int row_end) {
    sum_rows<Cache>(tile, row, row_end, to, tile.to[row], sums, stride);
  });
}
