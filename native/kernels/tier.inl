// One tier's bodies and its table; included by each isa/*.cpp after the vectors it is built from.

// clang-format off: each of these needs those above it.
#include "math.inl"
#include "codes.inl"
#include "scales.inl"
#include "stored.inl"
#include "pack.inl"
#include "prepare.inl"
#include "linear.inl"
#include "rows.inl"
#include "attend.inl"
#include "sample.inl"
#include "ceilings.inl"
// clang-format on

constexpr Kernels make_kernels() {
  return {
      kTierName,    pack,          unpack_row, prepare, linear, rmsnorm,     add_rows,
      scale_row,    swiglu,        geglu,      angles,  rope,   cache_write, attend_chunk,
      attend_merge, attend_finish, argmax,     sum_exp, gumbel, read_all,    multiply,
  };
}
