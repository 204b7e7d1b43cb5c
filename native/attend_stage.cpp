#include <algorithm>

#include "stages.h"

namespace farthing {
namespace {

struct ChunkRange {
  int first, end;
  int count() const { return end - first; }
};

// The first and last position that some query of the tile sees.
int first_visible(const Attention& attention) {
  if (attention.window == 0) return 0;
  return std::max(0, attention.first_position - attention.window + 1);
}
int last_visible(const Attention& attention) {
  return attention.first_position + attention.queries - 1;
}

// The chunks of which some query of the tile sees some position.
ChunkRange visible_chunks(const Attention& attention) {
  return {first_visible(attention) / kChunk, last_visible(attention) / kChunk + 1};
}

// Lets `attention` fetch what `next` begins with.
void foresee(Attention& attention, const Attention& next) {
  const int first = first_visible(next) / kBlock;
  attention.next_pool = next.pool;
  attention.next_table = next.block_table + first;
  attention.next_blocks = last_visible(next) / kBlock + 1 - first;
}

}  // namespace

Attention AttendStage::attention(const Worker& worker, const QueryTile& tile, int kv_head) const {
  const Cache& cache = worker.cache(layer_);
  const Step& step = worker.step;
  const int group = heads_ / cache.kv_heads;
  Attention a;
  a.type = worker.cache_type();
  a.head_dim = cache.head_dim;
  a.group = group;
  a.queries = tile.queries;
  a.first_position = step.positions[tile.token];
  a.window = window_;
  a.scale = scale_;
  a.query = worker.row(query_, tile.token) + kv_head * group * cache.head_dim;
  a.query_stride = worker.value(query_).stride;
  a.pool = worker.program.cache_data() + cache.offset +
           kv_head * head_block_bytes(a.type, cache.head_dim);
  a.block_stride = worker.program.sizes().block_bytes;
  a.block_table = step.block_tables + static_cast<int64_t>(tile.sequence) * step.table_width;
  a.next_pool = nullptr;
  a.next_table = nullptr;
  a.next_blocks = 0;
  return a;
}

void AttendStage::store(Worker& worker) const {
  const Cache& cache = worker.cache(layer_);
  const int64_t head_bytes = head_block_bytes(worker.cache_type(), cache.head_dim);
  worker.each(worker.step.tokens, [&](int token) {
    const float* key = worker.row(key_, token);
    const float* value = worker.row(value_, token);
    uint8_t* block = worker.token_block(layer_, token);
    for (int head = 0; head < cache.kv_heads; ++head) {
      worker.kernels.cache_write(worker.cache_type(), cache.head_dim, block + head * head_bytes,
                                 worker.token_slot(token), key + head * cache.head_dim,
                                 value + head * cache.head_dim);
    }
  });
  worker.barrier();
}

void AttendStage::finish(Worker& worker, const QueryTile& tile, int kv_head,
                         const float* state) const {
  const Cache& cache = worker.cache(layer_);
  const int group = heads_ / cache.kv_heads;
  const int64_t row_floats = partial_floats(cache.head_dim);
  for (int query = 0; query < tile.queries; ++query) {
    float* out = worker.row(output_, tile.token + query) + kv_head * group * cache.head_dim;
    for (int head = 0; head < group; ++head) {
      worker.kernels.attend_finish(state + (query * group + head) * row_floats, cache.head_dim,
                                   out + head * cache.head_dim);
    }
  }
}

void AttendStage::run(Worker& worker) const {
  if (key_ >= 0) store(worker);
  const Kernels& kernels = worker.kernels;
  const Cache& cache = worker.cache(layer_);
  const std::vector<QueryTile>& tiles = worker.query_tiles();
  const int pairs = static_cast<int>(tiles.size()) * cache.kv_heads;
  const int group = heads_ / cache.kv_heads;
  const int64_t row_floats = partial_floats(cache.head_dim);
  const bool reverse = worker.reverse_merges();
  // Attention of one query tile to one KV head, and a look at the next: a thread takes them in
  // order.
  auto pair_attention = [&](int pair) {
    Attention a = attention(worker, tiles[pair / cache.kv_heads], pair % cache.kv_heads);
    if (++pair < pairs) {
      foresee(a, attention(worker, tiles[pair / cache.kv_heads], pair % cache.kv_heads));
    }
    return a;
  };

  // Few pairs would leave threads idle: then chunks are dealt out one by one, their partials kept,
  // and whoever finishes a pair's last chunk merges them, in the same order as below.
  int most_chunks = 0, most_rows = 0;
  for (const QueryTile& tile : tiles) {
    most_chunks = std::max(most_chunks, visible_chunks(attention(worker, tile, 0)).count());
    most_rows = std::max(most_rows, tile.queries * group);
  }
  const bool split =
      most_chunks > 1 && worker.threads() > 1 && pairs <= kSplitItems * worker.threads() &&
      static_cast<int64_t>(pairs) * most_chunks * most_rows <= worker.program.sizes().partial_rows;

  float* state = worker.scratch_state();
  if (!split) {
    worker.each(pairs, [&](int pair) {
      const QueryTile& tile = tiles[pair / cache.kv_heads];
      const int kv_head = pair % cache.kv_heads;
      Attention a = pair_attention(pair);
      ChunkRange chunks = visible_chunks(a);
      const int rows = tile.queries * group;
      float* partial = state + rows * row_floats;
      for (int i = 0; i < chunks.count(); ++i) {
        int chunk = reverse ? chunks.end - 1 - i : chunks.first + i;
        kernels.attend_chunk(a, chunk, i == 0 ? state : partial);
        if (i > 0) kernels.attend_merge(state, partial, rows, cache.head_dim);
      }
      finish(worker, tile, kv_head, state);
    });
    worker.barrier();
    return;
  }

  const int64_t chunk_floats = most_rows * row_floats;
  worker.each(pairs * most_chunks, [&](int item) {
    const int pair = item / most_chunks;
    const QueryTile& tile = tiles[pair / cache.kv_heads];
    const int kv_head = pair % cache.kv_heads;
    Attention a = pair_attention(pair);
    ChunkRange chunks = visible_chunks(a);
    const int index = item % most_chunks;
    if (index >= chunks.count()) return;
    float* partials = worker.partials() + static_cast<int64_t>(pair) * most_chunks * chunk_floats;
    kernels.attend_chunk(a, chunks.first + index, partials + index * chunk_floats);
    if (worker.chunks_done(pair).fetch_add(1, std::memory_order_acq_rel) + 1 < chunks.count()) {
      return;
    }
    worker.chunks_done(pair).store(0, std::memory_order_relaxed);
    float* merged = partials + (reverse ? chunks.count() - 1 : 0) * chunk_floats;
    for (int i = 1; i < chunks.count(); ++i) {
      int next = reverse ? chunks.count() - 1 - i : i;
      kernels.attend_merge(merged, partials + next * chunk_floats, tile.queries * group,
                           cache.head_dim);
    }
    finish(worker, tile, kv_head, merged);
  });
  worker.barrier();
}

}  // namespace farthing
