// The scalar tier: plain C++ for whatever the compiler's baseline is.
#include <cstring>

#include "../kernels.h"

namespace farthing::scalar {
namespace {
constexpr const char* kTierName = "scalar";
// clang-format off: the second needs the first.
#include "../kernels/simd_scalar.inl"
#include "../kernels/split_pairs.inl"
// clang-format on
#include "../kernels/tier.inl"
}  // namespace

constinit const Kernels kernels = make_kernels();
}  // namespace farthing::scalar
