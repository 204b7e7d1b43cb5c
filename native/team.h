// A fixed team of threads that run one task together and meet at barriers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace farthing {

// A counter that threads wait on: they spin for a while, then sleep in the kernel.
class Signal {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void advance();                 // by one, waking every sleeper
  void wait_past(uint32_t seen);  // until the value is no longer `seen`

 private:
  alignas(64) std::atomic<uint32_t> value_{0};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
};

// The caller of `run` is thread 0; the others sleep between runs. Not for several callers at once.
class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }
  // Calls task(thread) on every thread and returns when all have returned. task must not throw.
  void run(const std::function<void(int)>& task);
  // Returns when every thread of the running task has called it.
  void barrier();
  // Splits [0, items) over the team, for work without barriers.
  void split(int64_t items, const std::function<void(int64_t, int64_t)>& range);

 private:
  void serve(int thread);

  const int threads_;
  Signal started_;
  Signal met_;
  alignas(64) std::atomic<int> arrived_{0};
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<bool> ending_{false};
  std::vector<std::thread> workers_;
};

// Items of one phase of a step, dealt out so that a thread takes its own share first, in order, and
// then helps the others. Who computes an item never changes what it computes.
class Phases {
 public:
  Phases(int phases, int threads)
      : threads_(threads), taken_(std::make_unique<Line[]>(size(phases))), count_(size(phases)) {}

  void reset() {
    for (size_t i = 0; i < count_; ++i) taken_[i].next.store(0, std::memory_order_relaxed);
  }

  template <class Body>
  void each(int phase, int thread, int items, Body&& body) {
    Line* lines = &taken_[static_cast<size_t>(phase) * threads_];
    for (int turn = 0; turn < threads_; ++turn) {
      int owner = (thread + turn) % threads_;
      int begin = static_cast<int>(static_cast<int64_t>(items) * owner / threads_);
      int end = static_cast<int>(static_cast<int64_t>(items) * (owner + 1) / threads_);
      for (;;) {
        int item = begin + lines[owner].next.fetch_add(1, std::memory_order_relaxed);
        if (item >= end) break;
        body(item);
      }
    }
  }

 private:
  struct alignas(64) Line {
    std::atomic<int> next{0};
  };
  size_t size(int phases) const { return static_cast<size_t>(phases) * threads_; }

  const int threads_;
  std::unique_ptr<Line[]> taken_;
  const size_t count_;
};

}  // namespace farthing
