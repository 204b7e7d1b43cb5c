// The NEON tier for processors with FEAT_I8MM besides (ARMv8.6, and some before it).
#include <arm_neon.h>

#include <cstring>

#include "../kernels.h"

namespace farthing::neon_i8mm {
namespace {
constexpr const char* kTierName = "neon-i8mm";
// clang-format off: each needs those above it.
#include "../kernels/simd_neon.inl"
#include "../kernels/simd_neon_i8mm.inl"
#include "../kernels/split_pairs.inl"
// clang-format on
#include "../kernels/tier.inl"
}  // namespace

constinit const Kernels kernels = make_kernels();
}  // namespace farthing::neon_i8mm
