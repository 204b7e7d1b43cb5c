// Attention over the paged cache, in chunks of 256 positions whose partial sums are merged in
// order.
// clang-format off: each of these needs those above it.
#include "rotate.inl"
#include "attend_cache.inl"
#include "attend_rope.inl"
#include "attend_tile.inl"
#include "attend_values.inl"
// clang-format on

// A row of a query as factors, times `scale`.
template <class Keys>
void prepare_query(const float* query, int head_dim, float scale, uint8_t* factors) {
  constexpr int kWidth = kLanes * Keys::kStep;
  for (int i = 0; i < head_dim; i += kWidth, factors += kLanes * Keys::kFactorBytes) {
    Float x[Keys::kStep];
#pragma GCC unroll 2
    for (int j = 0; j < Keys::kStep; ++j) {
      int at = i + j * kLanes;
      Float part = i + kWidth <= head_dim ? load(query + at)
                                          : load_first(query + at, clamp_lanes(head_dim - at));
      x[j] = mul(part, set1(scale));
    }
    auto prepared = Keys::factors(x);
    if (i + kWidth <= head_dim)
      memcpy(factors, &prepared, sizeof prepared);
    else
      memcpy(factors, &prepared, (head_dim - i) / Keys::kStep * Keys::kFactorBytes);
  }
}

// As above for keys that are rotated, whose factors are the rotated query's numbers.
void rotate_query(const float* query, int head_dim, float scale, uint8_t* factors) {
  float* rotated = reinterpret_cast<float*>(factors);
  for (int i = 0; i < head_dim; i += kLanes) {
    int n = clamp_lanes(head_dim - i);
    store_first(rotated + i, mul(load_first(query + i, n), set1(scale)), n);
  }
  rotate(rotated, head_dim);
}

// Where the blocks of a tile lie that ends before row_end, and what will be read after them.
template <class Cache>
void lay_out(const Attention& attention, int chunk, int row_end, Tile& tile) {
  auto block_at = [&](const uint8_t* pool, const int32_t* table, int index) {
    return pool + attention.block_stride * table[index];
  };
  const int first = chunk * kChunkBlocks;
  tile.block = tile.from[0] / kBlock;
  tile.block_end = (tile.to[tile.rows - 1] + kBlock - 1) / kBlock;
  const uint8_t** part = tile.parts;
  for (int b = tile.block; b < tile.block_end; ++b) {
    tile.blocks[b] = block_at(attention.pool, attention.block_table, first + b);
    *part++ = tile.blocks[b];
  }
  for (int b = tile.block; b < tile.block_end; ++b)
    *part++ =
        reinterpret_cast<const uint8_t*>(values_of<Cache>(tile.blocks[b], attention.head_dim));

  // The next tile's keys, the next chunk's, or what the caller says.
  const int blocks = (attention.first_position + attention.queries - 1) / kBlock + 1;
  const uint8_t* pool = attention.pool;
  const int32_t* table = attention.block_table + first + kChunkBlocks;
  int count = blocks - first - kChunkBlocks;
  if (row_end < attention.queries * attention.group) {
    table = attention.block_table + first + tile.block;
    count = tile.block_end - tile.block;
  } else if (count <= 0) {
    pool = attention.next_pool;
    table = attention.next_table;
    count = attention.next_blocks;
  }
  for (int b = 0; b < kMostAhead; ++b, ++part)
    *part = b < count ? block_at(pool, table, b) : part[-1];
}

// Rows [row, row_end) of `attention`, at most kTileRows.
template <class Cache>
void attend_tile(const Attention& attention, int chunk, int row, int row_end, float* partial) {
  const int head_dim = attention.head_dim;
  const int64_t stride = partial_floats(head_dim);
  float* sums = partial + row * stride;
  Tile tile;
  tile.rows = row_end - row;
  tile.head_dim = head_dim;
  for (int r = 0; r < tile.rows; ++r) {
    int query = (row + r) / attention.group;
    int head = (row + r) % attention.group;
    // As long as there are no sums, their place is the query's.
    auto* factors = reinterpret_cast<uint8_t*>(sums + r * stride);
    const float* numbers =
        attention.query + query * attention.query_stride + static_cast<int64_t>(head) * head_dim;
    if constexpr (Cache::Keys::kRotated)
      rotate_query(numbers, head_dim, attention.scale * kLog2E, factors);
    else
      prepare_query<typename Cache::Keys>(numbers, head_dim, attention.scale * kLog2E, factors);
    tile.query[r] = factors;
    int64_t end = static_cast<int64_t>(attention.first_position) + query + 1;
    int64_t begin = attention.window > 0 ? end - attention.window : 0;
    auto in_chunk = [&](int64_t position) {
      position -= static_cast<int64_t>(chunk) * kChunk;
      return static_cast<int>(position < 0 ? 0 : position < kChunk ? position : kChunk);
    };
    tile.from[r] = in_chunk(begin);
    tile.to[r] = in_chunk(end);
  }

  lay_out<Cache>(attention, chunk, row_end, tile);
  score_tile<Cache>(tile);
  auto sees = [&](int r) { return tile.from[r] < tile.to[r]; };
  for (int r = 0; r < tile.rows; ++r) {
    __builtin_memset(sums + r * stride, 0, sizeof(float) * (head_dim + 2));
    if (sees(r)) sums[r * stride + head_dim + 1] = mask_scores<Cache>(tile, r);
  }
  for (int r = 0; r < tile.rows; ++r) {
    float* row_sums = sums + r * stride;
    if (sees(r)) row_sums[head_dim] = weigh<Cache>(tile, r, row_sums[head_dim + 1]);
  }
  sum_tile<Cache>(tile, sums, stride);
}

template <class Cache>
void attend_tiles(const Attention& attention, int chunk, float* partial) {
  int rows = attention.queries * attention.group;
  int tiles = (rows + kTileRows - 1) / kTileRows;
  for (int t = 0; t < tiles; ++t)
    attend_tile<Cache>(attention, chunk, rows * t / tiles, rows * (t + 1) / tiles, partial);
}

void attend_chunk(const Attention& attention, int chunk, float* partial) {
  with_cache(attention.type,
             [&](auto cache) { attend_tiles<decltype(cache)>(attention, chunk, partial); });
}

// With M the larger of the two maxima: state * 2^(its maximum - M) + partial * 2^(its - M).
void merge_row(float* state, const float* partial, int head_dim) {
  const int weights = head_dim, maximum = head_dim + 1;
  if (partial[weights] == 0) return;
  if (state[weights] == 0) {
    __builtin_memcpy(state, partial, sizeof(float) * (head_dim + 2));
    return;
  }
  float largest = state[maximum] > partial[maximum] ? state[maximum] : partial[maximum];
  Float old_factor = exp2_below(set1(state[maximum] - largest));
  Float new_factor = exp2_below(set1(partial[maximum] - largest));
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes)
    store(state + i, fma(load(partial + i), new_factor, mul(load(state + i), old_factor)));
  const int rest = head_dim + 1 - i;  // of the sums of values, and the sum of weights
  Float merged =
      fma(load_first(partial + i, rest), new_factor, mul(load_first(state + i, rest), old_factor));
  store_first(state + i, merged, rest);
  state[maximum] = largest;
}

void attend_merge(float* state, const float* partial, int rows, int head_dim) {
  const int64_t stride = partial_floats(head_dim);
  for (int r = 0; r < rows; ++r) merge_row(state + r * stride, partial + r * stride, head_dim);
}

void attend_finish(const float* state, int head_dim, float* out) {
  Float sum = set1(state[head_dim]);
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store(out + i, div(load(state + i), sum));
  if (i < head_dim)
    store_first(out + i, div(load_first(state + i, head_dim - i), sum), head_dim - i);
}
