// Chooses the tier: the instructions that the processor has and whose registers the system saves.
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include "platform.h"
#endif

namespace farthing {
namespace {

struct Tier {
  const Kernels* kernels;
  bool runs_here;
};

#if defined(__x86_64__)

struct Processor {
  bool avx2 = false;
  bool avx512 = false;
};

// XCR0: which registers the system saves when it changes threads.
uint32_t saved_registers() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Processor read_processor() {
  constexpr uint32_t kVector256 = 0x6;   // xmm and ymm
  constexpr uint32_t kVector512 = 0xe6;  // and the mask registers and both halves of zmm
  uint32_t a, b, c, d;
  Processor processor;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return processor;
  uint32_t saved = saved_registers();
  bool fma = (c & bit_FMA) && (c & bit_F16C);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return processor;
  processor.avx2 = (saved & kVector256) == kVector256 && fma && (b & bit_AVX2);
  constexpr uint32_t kFoundation = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  bool avx512 = (saved & kVector512) == kVector512 && (b & kFoundation) == kFoundation &&
                (c & bit_AVX512VNNI);
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d)) return processor;
  processor.avx512 = processor.avx2 && avx512 && (a & bit_AVX512BF16);
  return processor;
}

#endif

constexpr int kTiers = 3;

// Every tier of this build, slowest first; the rest of the array is null.
void list_tiers(Tier (&tiers)[kTiers]) {
  tiers[0] = {&scalar::kernels, true};
#if defined(__x86_64__)
  Processor processor = read_processor();
  tiers[1] = {&avx2::kernels, processor.avx2};
  tiers[2] = {&avx512::kernels, processor.avx512};
#elif defined(__aarch64__)
  ArmFeatures features = arm_features();
  tiers[1] = {&neon_dotprod::kernels, features.dot_product};
  tiers[2] = {&neon_i8mm::kernels, features.dot_product && features.matrix_product};
#endif
}

}  // namespace

const Kernels* choose_kernels(const char* wanted, const char** problem) {
  Tier tiers[kTiers] = {};
  list_tiers(tiers);
  const Kernels* best = nullptr;
  for (const Tier& tier : tiers) {
    if (!tier.kernels) continue;
    if (wanted && *wanted) {
      if (std::strcmp(wanted, tier.kernels->name) != 0) continue;
      if (!tier.runs_here) *problem = "this processor or operating system lacks its instructions";
      return tier.runs_here ? tier.kernels : nullptr;
    }
    if (tier.runs_here) best = tier.kernels;
  }
  if (!best) *problem = "there is no such tier in this build";
  return best;
}

int available_tiers(const char** names, int capacity) {
  Tier tiers[kTiers] = {};
  list_tiers(tiers);
  int count = 0;
  for (const Tier& tier : tiers) {
    if (tier.kernels && tier.runs_here && count < capacity) names[count++] = tier.kernels->name;
  }
  return count;
}

}  // namespace farthing
