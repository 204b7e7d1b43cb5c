// The NEON tier for processors with FEAT_DotProd (ARMv8.2 and later).
#include <arm_neon.h>

#include <cstring>

#include "../kernels.h"

namespace farthing::neon_dotprod {
namespace {
constexpr const char* kTierName = "neon-dotprod";
// clang-format off: each needs those above it.
#include "../kernels/simd_neon.inl"
#include "../kernels/simd_neon_dotprod.inl"
#include "../kernels/split_pairs.inl"
// clang-format on
#include "../kernels/tier.inl"
}  // namespace

constinit const Kernels kernels = make_kernels();
}  // namespace farthing::neon_dotprod
