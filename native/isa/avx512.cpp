// The AVX-512 tier: F, BW, DQ, VL, VNNI and BF16.
#include "../kernels.h"

// GCC 12 takes the deliberately undefined operands in these headers for mistakes (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstring>

namespace farthing::avx512 {
namespace {
constexpr const char* kTierName = "avx512";
#include "../kernels/simd_avx512.inl"
#include "../kernels/tier.inl"
}  // namespace

constinit const Kernels kernels = make_kernels();
}  // namespace farthing::avx512
