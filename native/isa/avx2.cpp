// The AVX2 tier: AVX2, FMA and F16C.
#include <immintrin.h>

#include <cstring>

#include "../kernels.h"

namespace farthing::avx2 {
namespace {
constexpr const char* kTierName = "avx2";
// clang-format off: the second needs the first.
#include "../kernels/simd_avx2.inl"
#include "../kernels/split_pairs.inl"
// clang-format on
#include "../kernels/tier.inl"
}  // namespace

constinit const Kernels kernels = make_kernels();
}  // namespace farthing::avx2
