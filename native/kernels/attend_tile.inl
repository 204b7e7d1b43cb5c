// A tile: a few rows of one Attention against one chunk, in three phases: scores, weights, values.
// How rows fall into tiles, and positions into runs of blocks, never changes what is computed for a
// row: each of its numbers is summed alone, along d or along the positions, in rising order. What a
// row may not see (the future, what left its window, unused slots) can hold any bits, NaN included:
// scores of such positions are replaced before use, and their values are not multiplied at all.

constexpr int kChunkBlocks = kChunk / kBlock;
constexpr int kBlockVectors = kBlock / kLanes;

// As many sums at once as the registers hold: rows of a tile, vectors of positions for scores, and
// vectors of a value's elements.
constexpr int kTileRows = kRegisters >= 32 ? 6 : 4;
constexpr int score_vectors(int rows) {
  return kRegisters >= 32 || rows == 1 ? 4 : rows == 2 ? 2 : 1;
}
constexpr int value_vectors(int rows) {
  return kRegisters >= 32 ? (rows <= 3 ? 8 : 4) : rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

struct Tile {
  int rows;
  const float* query[kTileRows];                  // [head_dim]
  int from[kTileRows], to[kTileRows];             // a row sees [from, to); neither falls
  const uint8_t* blocks[kChunkBlocks];            // those that some row sees
  alignas(64) float weights[kTileRows * kChunk];  // first the scores
};

template <int N>
struct Size {
  static constexpr int value = N;
};
// Calls body(Size<count>()), 1 <= count <= Largest, so that loops over `count` unroll.
template <int Largest, class Body>
FARTHING_INLINE void with_size(int count, Body body) {
  if constexpr (Largest > 1) {
    if (count < Largest) return with_size<Largest - 1>(count, body);
  }
  body(Size<Largest>());
}

// Asks for memory that is read next: blocks lie anywhere, so that the processor cannot foresee
// them.
template <int Bytes>
FARTHING_INLINE void prefetch_bytes(const void* p) {
  for (int i = 0; i < Bytes; i += 64) prefetch(static_cast<const uint8_t*>(p) + i);
}

// weights[row][position] = scale * (query . key), for `Vectors` vectors of positions from
// `position` on. `ahead` is as many blocks' keys or values, to be read afterwards.
template <class Cache, int Rows, int Vectors>
void score_positions(Tile& tile, int position, const typename Cache::Element* const* ahead,
                     int head_dim, float scale) {
  constexpr int kBlocks = (Vectors + kBlockVectors - 1) / kBlockVectors;
  const uint8_t* const* blocks = tile.blocks + position / kBlock;
  const int slot = position % kBlock;
  const float* query[Rows];
  const typename Cache::Element* keys[kBlocks];
  Float sums[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    query[r] = tile.query[r];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sums[r][v] = zero();
  }
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) keys[b] = keys_of<Cache>(blocks[b]) + slot;

  for (int64_t d = 0; d < head_dim; ++d) {
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b)
      prefetch_bytes<kBlock * sizeof(*ahead[b])>(ahead[b] + d * kBlock);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      Float key = Cache::read(keys[v / kBlockVectors] + d * kBlock + v % kBlockVectors * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sums[r][v] = fma(set1(query[r][d]), key, sums[r][v]);
    }
  }

#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) {
    Float key_scale = set1(1.0f);
    if constexpr (Cache::kScaled)
      key_scale = load(key_scales_of(blocks[v / kBlockVectors], head_dim) + slot +
                       v % kBlockVectors * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      Float score = mul(sums[r][v], set1(scale));
      if constexpr (Cache::kScaled) score = mul(score, key_scale);
      store(tile.weights + r * kChunk + position + v * kLanes, score);
    }
  }
}

// Turns a row's scores to exp(score - largest), times the value's scale where there is one.
template <class Cache>
void weigh(float* scores, int from, int to, const uint8_t* const* blocks, int head_dim,
           float* partial) {
  constexpr float kNever = -__builtin_inff();
  int first = from / kLanes * kLanes;
  int last = (to - 1) / kLanes * kLanes;
  store(scores + first, select(from - first, kLanes, load(scores + first), set1(kNever)));
  store(scores + last, select(0, to - last, load(scores + last), set1(kNever)));
  Float largest = set1(kNever);
  for (int i = first; i <= last; i += kLanes) largest = max(largest, load(scores + i));
  partial[0] = reduce_max(largest);
  largest = set1(partial[0]);
  Float sum = zero();
  for (int i = first; i <= last; i += kLanes) {
    Float weight = exp(sub(load(scores + i), largest));
    sum = add(sum, weight);
    if constexpr (Cache::kScaled)
      weight = mul(weight, load(value_scales_of(blocks[i / kBlock], head_dim) + i % kBlock));
    store(scores + i, weight);
  }
  partial[1] = reduce_add(sum);
}

// The first `count` elements; the rest are zero, and not touched in memory.
template <class Cache>
FARTHING_INLINE Float read_first(const typename Cache::Element* p, int count) {
  typename Cache::Element elements[kLanes] = {};
  for (int i = 0; i < count; ++i) elements[i] = p[i];
  return Cache::read(elements);
}

// sums[row][n] += sum of weight[row][position] * value[position][column + n] over [from, to), which
// every row here sees. Width: how many n, whole vectors or a single vector's first few.
template <class Cache, int Rows, int Vectors, bool Whole>
void add_values(const uint8_t* const* blocks, int head_dim, int column, int width, int from, int to,
                const float* weights, float* sums, int64_t stride) {
  Float sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const float* p = sums + r * stride + column + v * kLanes;
      sum[r][v] = Whole ? load(p) : load_first(p, width);
    }
  }
  for (int position = from; position < to;) {
    int block = position / kBlock;
    int end = (block + 1) * kBlock < to ? (block + 1) * kBlock : to;
    int next = end < to ? block + 1 : block;
    int64_t offset = position % kBlock * static_cast<int64_t>(head_dim) + column;
    const auto* values = values_of<Cache>(blocks[block], head_dim) + offset;
    const auto* ahead = values_of<Cache>(blocks[next], head_dim) + offset;
    for (; position < end; ++position, values += head_dim, ahead += head_dim) {
      prefetch_bytes<Vectors * kLanes * sizeof(*ahead)>(ahead);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        Float value = Whole ? Cache::read(values + v * kLanes) : read_first<Cache>(values, width);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
          sum[r][v] = fma(set1(weights[r * kChunk + position]), value, sum[r][v]);
      }
    }
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
void add_slices(const uint8_t* const* blocks, int head_dim, int column, int from, int to,
                const float* weights, float* sums, int64_t stride) {
  constexpr int kWidth = Vectors * kLanes;
  for (; column + kWidth <= head_dim; column += kWidth)
    add_values<Cache, Rows, Vectors, true>(blocks, head_dim, column, kWidth, from, to, weights,
                                           sums, stride);
  if (column == head_dim) return;
  if constexpr (Vectors > 1)
    add_slices<Cache, Rows, Vectors / 2>(blocks, head_dim, column, from, to, weights, sums, stride);
  else
    add_values<Cache, Rows, 1, false>(blocks, head_dim, column, head_dim - column, from, to,
                                      weights, sums, stride);
}

// Scores the blocks [block, block_end); as many vectors at once as fit, then the rest by blocks.
template <class Cache, int Rows, int Vectors = score_vectors(Rows)>
void score_blocks(Tile& tile, int head_dim, float scale, int first, int block, int block_end) {
  constexpr int kBlocks = (Vectors + kBlockVectors - 1) / kBlockVectors;
  for (; block + kBlocks <= block_end; block += kBlocks) {
    const typename Cache::Element* ahead[kBlocks];  // after the last keys come the first values
    for (int b = 0; b < kBlocks; ++b) {
      int next = block + kBlocks + b;
      ahead[b] = next < block_end
                     ? keys_of<Cache>(tile.blocks[next])
                     : values_of<Cache>(tile.blocks[first + next - block_end], head_dim);
    }
    for (int slot = 0; slot < kBlocks * kBlock; slot += Vectors * kLanes)
      score_positions<Cache, Rows, Vectors>(tile, block * kBlock + slot, ahead, head_dim, scale);
  }
  if constexpr (kBlocks > 1) {
    if (block < block_end)
      score_blocks<Cache, Rows, kBlockVectors>(tile, head_dim, scale, first, block, block_end);
  }
}

template <class Cache>
void score_tile(Tile& tile, int head_dim, float scale, int block, int block_end) {
  with_size<kTileRows>(tile.rows, [&](auto rows) {
    score_blocks<Cache, rows.value>(tile, head_dim, scale, block, block, block_end);
  });
}

// Adds the values in stretches of positions that the same rows see: `row` up to `row_end`.
template <class Cache>
void sum_tile(const Tile& tile, int head_dim, float* sums, int64_t stride) {
  int end = tile.to[tile.rows - 1];
  for (int row = 0, row_end = 0, position = tile.from[0]; position < end;) {
    while (tile.to[row] <= position) ++row;
    while (row_end < tile.rows && tile.from[row_end] <= position) ++row_end;
    int next = tile.to[row];
    if (row_end < tile.rows && tile.from[row_end] < next) next = tile.from[row_end];
    with_size<kTileRows>(row_end - row, [&](auto rows) {
      add_slices<Cache, rows.value>(tile.blocks, head_dim, 0, position, next,
                                    tile.weights + row * kChunk, sums + row * stride, stride);
    });
    position = next;
  }
}
