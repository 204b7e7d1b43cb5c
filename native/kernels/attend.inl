// Attention over the paged cache, in chunks of 256 positions whose partial sums are merged in
// order.
#include "attend_cache.inl"
#include "attend_rope.inl"
#include "attend_tile.inl"

// Rows [row, row_end) of `attention`, at most kTileRows.
template <class Cache>
void attend_tile(const Attention& attention, int chunk, int row, int row_end, float* partial) {
  const int head_dim = attention.head_dim;
  const int64_t stride = partial_floats(head_dim);
  Tile tile;
  tile.rows = row_end - row;
  for (int r = 0; r < tile.rows; ++r) {
    int query = (row + r) / attention.group;
    int head = (row + r) % attention.group;
    tile.query[r] =
        attention.query + query * attention.query_stride + static_cast<int64_t>(head) * head_dim;
    int64_t end = static_cast<int64_t>(attention.first_position) + query + 1;
    int64_t begin = attention.window > 0 ? end - attention.window : 0;
    auto in_chunk = [&](int64_t position) {
      position -= static_cast<int64_t>(chunk) * kChunk;
      return static_cast<int>(position < 0 ? 0 : position < kChunk ? position : kChunk);
    };
    tile.from[r] = in_chunk(begin);
    tile.to[r] = in_chunk(end);
    float* sums = partial + (row + r) * stride;
    __builtin_memset(sums, 0, sizeof(float) * (head_dim + 2));
  }

  int block = tile.from[0] / kBlock;
  int block_end = (tile.to[tile.rows - 1] + kBlock - 1) / kBlock;
  for (int b = block; b < block_end; ++b)
    tile.blocks[b] =
        attention.pool + attention.block_stride * attention.block_table[chunk * kChunkBlocks + b];
  score_tile<Cache>(tile, head_dim, attention.scale, block, block_end);
  for (int r = 0; r < tile.rows; ++r)
    if (tile.from[r] < tile.to[r])
      weigh<Cache>(tile.weights + r * kChunk, tile.from[r], tile.to[r], tile.blocks, head_dim,
                   partial + (row + r) * stride);
  sum_tile<Cache>(tile, head_dim, partial + row * stride + 2, stride);
}

template <class Cache>
void attend_tiles(const Attention& attention, int chunk, float* partial) {
  int rows = attention.queries * attention.group;
  int tiles = (rows + kTileRows - 1) / kTileRows;
  for (int t = 0; t < tiles; ++t)
    attend_tile<Cache>(attention, chunk, rows * t / tiles, rows * (t + 1) / tiles, partial);
}

void attend_chunk(const Attention& attention, int chunk, float* partial) {
  switch (attention.type) {
    case CacheType::FP32:
      return attend_tiles<CacheFp32>(attention, chunk, partial);
    case CacheType::FP16:
      return attend_tiles<CacheFp16>(attention, chunk, partial);
    case CacheType::BF16:
      return attend_tiles<CacheBf16>(attention, chunk, partial);
    case CacheType::INT8:
      return attend_tiles<CacheInt8>(attention, chunk, partial);
  }
}

// With M the larger of the two maxima: state * exp(its maximum - M) + partial * exp(its - M).
void merge_row(float* state, const float* partial, int head_dim) {
  if (partial[1] == 0) return;
  if (state[1] == 0) {
    __builtin_memcpy(state, partial, sizeof(float) * (head_dim + 2));
    return;
  }
  float largest = state[0] > partial[0] ? state[0] : partial[0];
  Float old_factor = exp(set1(state[0] - largest));
  Float new_factor = exp(set1(partial[0] - largest));
  state[0] = largest;
  for (int i = 1; i < head_dim + 2; i += kLanes) {  // the sum of weights, then those of values
    int n = head_dim + 2 - i < kLanes ? head_dim + 2 - i : kLanes;
    Float merged =
        fma(load_first(partial + i, n), new_factor, mul(load_first(state + i, n), old_factor));
    store_first(state + i, merged, n);
  }
}

void attend_merge(float* state, const float* partial, int rows, int head_dim) {
  const int64_t stride = partial_floats(head_dim);
  for (int r = 0; r < rows; ++r) merge_row(state + r * stride, partial + r * stride, head_dim);
}

void attend_finish(const float* state, int head_dim, float* out) {
  Float sum = set1(state[1]);
  for (int i = 0; i < head_dim; i += kLanes) {
    int n = head_dim - i < kLanes ? head_dim - i : kLanes;
    store_first(out + i, div(load_first(state + 2 + i, n), sum), n);
  }
}
