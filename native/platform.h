// What differs between systems: memory straight from the kernel, and the pause in a spin.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farthing {

// Zeroed, 64-byte aligned pages of its own; large ones ask for huge pages. Freed on destruction.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes);  // throws std::bad_alloc
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

// Tells the processor that this thread is waiting for another.
void relax();

}  // namespace farthing
