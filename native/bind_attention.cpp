// The attention kernels of every tier over numpy arrays, one function each, for the tests. Outputs
// are arrays of the caller's, changed in place.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "bind.h"
#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace farthing {
namespace {

CacheType cache_type_of(int number) {
  require(number >= 0 && number <= static_cast<int>(CacheType::INT4_KEYS),
          "cache_type: not one of FP32 0, FP16 1, BF16 2, INT8 3, INT4_KEYS 4");
  return static_cast<CacheType>(number);
}

void require_heads(CacheType type, int head_dim) {
  require(holds_heads(type, head_dim), "the cache type takes no heads of this head_dim");
}

void bind_angles(const char* tier, int32_t position, Array<const double, 1> frequencies,
                 Array<float, 1> cosine, Array<float, 1> sine) {
  require(cosine.size() == frequencies.size() && sine.size() == frequencies.size(),
          "angles: frequencies, cosine and sine differ in length");
  tier_named(tier).angles(position, frequencies.data(), static_cast<int>(frequencies.size()),
                          cosine.data(), sine.data());
}

void bind_rope(const char* tier, Array<float, 1> x, Array<const float, 1> cosine,
               Array<const float, 1> sine) {
  require(x.size() == 2 * cosine.size() && cosine.size() == sine.size(),
          "rope: x must hold twice as many elements as cosine and sine");
  tier_named(tier).rope(x.data(), cosine.data(), sine.data(), static_cast<int>(cosine.size()));
}

void bind_cache_write(const char* tier, int cache_type, Array<uint8_t, 1> head_block, int slot,
                      Array<const float, 1> key, Array<const float, 1> value) {
  CacheType type = cache_type_of(cache_type);
  int head_dim = static_cast<int>(key.size());
  require_heads(type, head_dim);
  require(value.size() == key.size(), "cache_write: key and value differ in length");
  require(static_cast<int64_t>(head_block.size()) >= head_block_bytes(type, head_dim),
          "cache_write: head_block is shorter than head_block_bytes");
  require(slot >= 0 && slot < kBlock, "cache_write: slot is not in 0 ... 31");
  tier_named(tier).cache_write(type, head_dim, head_block.data(), slot, key.data(), value.data());
}

// pool[block] is one KV head's part of a block, the blocks any distance apart.
using Pool = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;

void bind_attend_chunk(const char* tier, int cache_type, Array<const float, 3> query, Pool pool,
                       Array<const int32_t, 1> block_table, int first_position, int window,
                       float scale, int chunk, Array<float, 2> partial) {
  Attention attention{};
  attention.type = cache_type_of(cache_type);
  attention.queries = static_cast<int>(query.shape(0));
  attention.group = static_cast<int>(query.shape(1));
  attention.head_dim = static_cast<int>(query.shape(2));
  attention.first_position = first_position;
  attention.window = window;
  attention.scale = scale;
  attention.query = query.data();
  attention.query_stride = static_cast<int64_t>(query.shape(1) * query.shape(2));
  attention.pool = pool.data();
  attention.block_stride = pool.stride(0);
  attention.block_table = block_table.data();
  require_heads(attention.type, attention.head_dim);
  require(attention.queries >= 1 && attention.queries <= kQueryTile && attention.group >= 1,
          "attend_chunk: query must be [1 ... 8 queries][group][head_dim]");
  require(pool.stride(1) == 1 && static_cast<int64_t>(pool.shape(1)) >=
                                     head_block_bytes(attention.type, attention.head_dim),
          "attend_chunk: pool must be [blocks][head_block_bytes]");
  require(first_position >= 0 && chunk >= 0, "attend_chunk: a position or chunk is negative");
  int64_t positions = first_position + attention.queries;
  require(static_cast<int64_t>(block_table.size()) * kBlock >= positions,
          "attend_chunk: block_table ends before the last query");
  for (size_t i = 0; i < block_table.size(); ++i)
    require(block_table.data()[i] < static_cast<int64_t>(pool.shape(0)),
            "attend_chunk: block_table names a block that the pool lacks");
  require(static_cast<int64_t>(partial.shape(0)) == attention.queries * attention.group &&
              static_cast<int64_t>(partial.shape(1)) == partial_floats(attention.head_dim),
          "attend_chunk: partial must be [queries * group][partial_floats]");
  tier_named(tier).attend_chunk(attention, chunk, partial.data());
}

void bind_attend_merge(const char* tier, int head_dim, Array<float, 2> state,
                       Array<const float, 2> partial) {
  require(state.shape(0) == partial.shape(0) && state.shape(1) == partial.shape(1) &&
              static_cast<int64_t>(state.shape(1)) == partial_floats(head_dim),
          "attend_merge: state and partial must be [rows][partial_floats]");
  tier_named(tier).attend_merge(state.data(), partial.data(), static_cast<int>(state.shape(0)),
                                head_dim);
}

void bind_attend_finish(const char* tier, Array<const float, 1> state, Array<float, 1> out) {
  int head_dim = static_cast<int>(out.size());
  require(static_cast<int64_t>(state.size()) == partial_floats(head_dim),
          "attend_finish: state must be [partial_floats]");
  tier_named(tier).attend_finish(state.data(), head_dim, out.data());
}

int64_t bind_head_block_bytes(int cache_type, int64_t head_dim) {
  return head_block_bytes(cache_type_of(cache_type), head_dim);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("head_block_bytes", bind_head_block_bytes, "cache_type"_a, "head_dim"_a);
  m.def("partial_floats", partial_floats, "head_dim"_a);
  m.def("angles", bind_angles, "tier"_a, "position"_a, "frequencies"_a, "cosine"_a.noconvert(),
        "sine"_a.noconvert());
  m.def("rope", bind_rope, "tier"_a, "x"_a.noconvert(), "cosine"_a, "sine"_a);
  m.def("cache_write", bind_cache_write, "tier"_a, "cache_type"_a, "head_block"_a.noconvert(),
        "slot"_a, "key"_a, "value"_a);
  m.def("attend_chunk", bind_attend_chunk, "tier"_a, "cache_type"_a, "query"_a, "pool"_a,
        "block_table"_a, "first_position"_a, "window"_a, "scale"_a, "chunk"_a,
        "partial"_a.noconvert());
  m.def("attend_merge", bind_attend_merge, "tier"_a, "head_dim"_a, "state"_a.noconvert(),
        "partial"_a);
  m.def("attend_finish", bind_attend_finish, "tier"_a, "state"_a, "out"_a.noconvert());
}

}  // namespace farthing
