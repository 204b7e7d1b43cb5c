#include "ceilings.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace farthing {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kRounds = 2048;  // of products between two looks at the clock

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t share_of(int64_t bytes, int threads) {
  const int64_t share = threads > 0 ? bytes / threads / kPage * kPage : 0;
  if (share <= 0) throw std::invalid_argument("the buffer must have a page for each thread");
  return share;
}

}  // namespace

Ceilings::Ceilings(const Kernels& kernels, int threads, int64_t bytes)
    : kernels_(kernels),
      team_(threads),
      share_(share_of(bytes, threads)),
      ordinary_(share_ * threads, PageSize::Ordinary),
      huge_(share_ * threads) {
  // Until they are written, all pages may be one page of zeros, which any cache holds.
  team_.run([this](int thread) {
    std::memset(ordinary_.data() + thread * share_, 1, share_);
    std::memset(huge_.data() + thread * share_, 1, share_);
  });
}

double Ceilings::read(bool huge_pages, int64_t ahead) {
  const uint8_t* data = huge_pages ? huge_.data() : ordinary_.data();
  std::atomic<int32_t> sum{0};
  const double started = now();
  team_.run([&](int thread) {
    sum.fetch_add(kernels_.read_all(data + thread * share_, share_, ahead),
                  std::memory_order_relaxed);
  });
  return static_cast<double>(bytes()) / (now() - started);
}

double Ceilings::multiply(Mode mode, double seconds) {
  std::atomic<int64_t> done{0};
  const double started = now();
  team_.run([&](int) {
    int64_t mine = 0;
    do {
      mine += kernels_.multiply(mode, kRounds);
    } while (now() - started < seconds);
    done.fetch_add(mine, std::memory_order_relaxed);
  });
  return static_cast<double>(done) / (now() - started);
}

}  // namespace farthing
