#include "platform.h"

#include <new>
#include <utility>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace farthing {
namespace {

// Null where there is no memory.
void* map_pages(size_t bytes, [[maybe_unused]] PageSize size) {
#if defined(_WIN32)
  // Huge pages would need a privilege that users lack.
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
#if defined(MADV_HUGEPAGE)
  constexpr size_t kHugePage = size_t{2} << 20;
  const bool huge = size == PageSize::Huge && bytes >= kHugePage;
  // A refusal only costs speed.
  madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
  return memory;
#endif
}

void unmap_pages(void* memory, size_t bytes) {
#if defined(_WIN32)
  static_cast<void>(bytes);
  VirtualFree(memory, 0, MEM_RELEASE);
#else
  munmap(memory, bytes);
#endif
}

#if defined(__APPLE__) && defined(__aarch64__)
bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

}  // namespace

Pages::Pages(size_t bytes, PageSize size) : size_(bytes) {
  if (bytes == 0) return;
  data_ = static_cast<uint8_t*>(map_pages(bytes, size));
  if (data_ == nullptr) throw std::bad_alloc();
}

Pages::~Pages() {
  if (data_ != nullptr) unmap_pages(data_, size_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ArmFeatures arm_features() {
  ArmFeatures features;
#if defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  constexpr unsigned long kMatrixProduct = 1ul << 13;
  features.dot_product = getauxval(AT_HWCAP) & kDotProduct;
  features.matrix_product = getauxval(AT_HWCAP2) & kMatrixProduct;
#elif defined(__aarch64__) && defined(__APPLE__)
  features.dot_product = has_feature("hw.optional.arm.FEAT_DotProd");
  features.matrix_product = has_feature("hw.optional.arm.FEAT_I8MM");
#endif
  return features;
}

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace farthing
