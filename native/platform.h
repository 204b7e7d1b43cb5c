// The one file for what differs between systems: memory straight from the kernel, what an ARM
// processor can do, and the pause in a spin. (Which cores to use is plan/machine.py's to say.)
//
// Waiting on an address is not here: std::atomic::wait is the system's own call wherever we build
// (futex on Linux, __ulock on macOS, WaitOnAddress on Windows).
#pragma once

#include <cstddef>
#include <cstdint>

namespace farthing {

enum class PageSize { Ordinary, Huge };

// Zeroed, 64-byte aligned pages of its own, huge ones for large memory where the system grants
// them. Freed on destruction.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes, PageSize size = PageSize::Huge);  // throws std::bad_alloc
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// What an ARM processor has beyond the baseline; nothing on others.
struct ArmFeatures {
  bool dot_product = false;     // FEAT_DotProd
  bool matrix_product = false;  // FEAT_I8MM
};
ArmFeatures arm_features();

// Tells the processor that this thread is waiting for another.
void relax();

}  // namespace farthing
