// The scalar tier: plain C++ for whatever the compiler's baseline is.
#include <cstring>

#include "../kernels.h"

namespace farthing::scalar {
namespace {
constexpr const char* kTierName = "scalar";
#include "../kernels/simd_scalar.inl"
#include "../kernels/tier.inl"
}  // namespace

constinit const Kernels kernels = make_kernels();
}  // namespace farthing::scalar
