// A tile: a few rows of one Attention against one chunk, in three phases: scores, weights, values.
// How rows fall into tiles, and positions into runs of blocks, never changes what is computed for a
// row: each of its numbers is summed alone, along head_dim or along the positions, in rising order.
// What a row may not see (the future, what left its window, unused slots) can hold any bits, NaN
// included: scores of such positions are replaced before use, and their values are not multiplied
// at all, or, where they pair up with one that the row sees, are taken for zeros.

constexpr int kChunkBlocks = kChunk / kBlock;
constexpr int kBlockVectors = kBlock / kLanes;

// As many sums at once as the registers hold: rows of a tile, vectors of positions for scores, and
// vectors of a value's elements.
constexpr int kTileRows = kRegisters >= 32 ? 6 : 4;
template <class Cache>
constexpr int score_vectors(int rows) {
  // Few rows wait for memory, which gives more where a step reads two lines than where it reads
  // four.
  return kRegisters >= 32 ? (rows <= 3 ? 4 / Cache::Keys::kStep : 4)
         : rows == 1      ? 4
         : rows == 2      ? 2
                          : 1;
}
constexpr int value_vectors(int rows) {
  return kRegisters >= 32 ? (rows <= 3 ? 8 : 4) : rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

// Blocks lie anywhere, so that the processor cannot foresee what is read next: while a part, the
// keys or the values of a block, is read, the one so many later is fetched. Measured: where
// products are fast, further ahead is more than memory takes requests for.
constexpr int kMostAhead = 2;
template <class Cache>
constexpr int kAhead = kRegisters >= 32 ? kMostAhead / Cache::Values::kStep : kMostAhead;

struct Tile {
  int rows, head_dim;
  int from[kTileRows], to[kTileRows];  // a row sees [from, to); neither falls
  const uint8_t* query[kTileRows];     // factors
  int block, block_end;                // those that some row sees
  const uint8_t* blocks[kChunkBlocks];
  // What is read in order: keys of these blocks, their values, then the first keys of what follows.
  const uint8_t* parts[2 * kChunkBlocks + kMostAhead];
  alignas(64) float scores[kTileRows * kChunk];  // by weigh, turned into factors in the same place

  const uint8_t* weights(int row) const {
    return reinterpret_cast<const uint8_t*>(scores + row * kChunk);
  }
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

template <int Bytes>
FARTHING_INLINE void prefetch_bytes(const void* p) {
  for (int i = 0; i < Bytes; i += 64) prefetch(static_cast<const uint8_t*>(p) + i);
}

// scores[row][position] = query . key, for `Vectors` vectors of positions from `position` on.
template <class Cache, int Rows, int Vectors>
void score_positions(Tile& tile, int position) {
  using Keys = typename Cache::Keys;
  constexpr int kBlocks = (Vectors + kBlockVectors - 1) / kBlockVectors;
  constexpr int64_t kKeyStride = kBlock * Keys::kTogether;
  constexpr int64_t kKeyBytes = kKeyStride * sizeof(typename Keys::Element);
  const uint8_t* query[Rows];
  const typename Keys::Element* keys[Vectors];
  const uint8_t* ahead[kBlocks];
  Float sums[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    query[r] = tile.query[r];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sums[r][v] = zero();
  }
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) {
    int at = position + v * kLanes;
    keys[v] = keys_of<Cache>(tile.blocks[at / kBlock]) + at % kBlock * Keys::kTogether;
  }
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b)
    ahead[b] = tile.parts[position / kBlock - tile.block + b +
                          (kBlocks > kAhead<Cache> ? kBlocks : kAhead<Cache>)];

  const int64_t steps = tile.head_dim / Keys::kStep;
  for (int64_t d = 0; d < steps; ++d) {
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) prefetch_bytes<kKeyBytes>(ahead[b] + d * kKeyBytes);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      auto key = Keys::read(keys[v] + d * kKeyStride);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r)
        sums[r][v] = Keys::multiply_add(sums[r][v], key, query[r] + d * Keys::kFactorBytes);
    }
  }

#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) {
    int at = position + v * kLanes;
    Float scale = zero();
    if constexpr (Keys::kScaled)
      scale = Keys::load_scales(key_scales_of<Cache>(tile.blocks[at / kBlock], tile.head_dim) +
                                at % kBlock);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      Float score = sums[r][v];
      if constexpr (Keys::kScaled) score = mul(score, scale);
      store(tile.scores + r * kChunk + at, score);
    }
  }
}

// Scores [position, end), both multiples of kLanes; as many vectors at once as fit, then the rest.
template <class Cache, int Rows>
void score_rows(Tile& tile, int position, int end) {
  constexpr int kVectors = score_vectors<Cache>(Rows);
  while (position < end) {
    int vectors = (end - position) / kLanes;
    if (vectors > kVectors) vectors = kVectors;
    with_size<kVectors>(
        vectors, [&](auto size) { score_positions<Cache, Rows, size.value>(tile, position); });
    position += vectors * kLanes;
  }
}

template <class Cache>
void score_tile(Tile& tile) {
  int position = tile.from[0] / kLanes * kLanes;
  int end = (tile.to[tile.rows - 1] + kLanes - 1) / kLanes * kLanes;
  with_size<kTileRows>(tile.rows,
                       [&](auto rows) { score_rows<Cache, rows.value>(tile, position, end); });
}

FARTHING_INLINE int clamp_lanes(int count) {
  return count < 0 ? 0 : count < kLanes ? count : kLanes;
}

// Factors come in whole vectors: the positions that a row's weights are made for.
template <class Cache>
constexpr int kWeightPositions = kLanes * Cache::Values::kStep;

// Hides the scores of what a row may not see, and returns the largest of the others.
template <class Cache>
float mask_scores(Tile& tile, int row) {
  constexpr int kWidth = kWeightPositions<Cache>;
  constexpr float kNever =
      -3.40282347e38f;  // the lowest number, whose difference to another is one
  float* scores = tile.scores + row * kChunk;
  const int from = tile.from[row], to = tile.to[row];
  const int first = from / kWidth * kWidth, last = (to - 1) / kWidth * kWidth;
  if (first < from) {
    for (int i = first; i < first + kWidth; i += kLanes)
      store(scores + i, select(clamp_lanes(from - i), kLanes, load(scores + i), set1(kNever)));
  }
  if (to < last + kWidth) {
    for (int i = last; i < last + kWidth; i += kLanes)
      store(scores + i, select(0, clamp_lanes(to - i), load(scores + i), set1(kNever)));
  }
  Float largest = set1(kNever);
  for (int i = first; i <= last; i += kWidth) {
    Float part = load(scores + i);
    if constexpr (Cache::Values::kStep == 2) part = max(part, load(scores + i + kLanes));
    largest = max(largest, part);
  }
  return reduce_max(largest);
}

// Turns a row's scores into 2^(score - largest), times the value's scale where there is one, as
// factors. The sum is that of the weights as they are multiplied, rounded where factors are, so
// that a mean of equal values is that value. Returns it.
template <class Cache>
float weigh(Tile& tile, int row, float largest) {
  using Values = typename Cache::Values;
  constexpr int kWidth = kWeightPositions<Cache>;
  float* scores = tile.scores + row * kChunk;
  uint8_t* weights = reinterpret_cast<uint8_t*>(scores);
  Float sum = zero();
  for (int i = tile.from[row] / kWidth * kWidth; i < tile.to[row]; i += kWidth) {
    Float weight[Values::kStep];
#pragma GCC unroll 2
    for (int j = 0; j < Values::kStep; ++j)
      weight[j] = exp2_below(sub(load(scores + i + j * kLanes), set1(largest)));
    auto factors = Values::factors(weight);
    sum = Values::add_factors(sum, factors);
    if constexpr (Values::kScaled)
      factors =
          mul(factors,
              Values::load_scales(value_scales_of<Cache>(tile.blocks[i / kBlock], tile.head_dim) +
                                  i % kBlock));
    memcpy(weights + i / Values::kStep * Values::kFactorBytes, &factors, sizeof factors);
  }
  return reduce_add(sum);
}
