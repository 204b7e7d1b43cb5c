#include "team.h"

#include "platform.h"

namespace farthing {
namespace {
// Long enough to cover the gap between two phases, short enough to yield the core soon when the
// machine has fewer free cores than threads.
constexpr int kSpins = 2000;
}  // namespace

void Signal::advance() {
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) value_.notify_all();
}

void Signal::wait_past(uint32_t seen) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value_.load(std::memory_order_acquire) != seen) return;
    relax();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) == seen) value_.wait(seen);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

Team::Team(int threads) : threads_(threads) {
  for (int thread = 1; thread < threads_; ++thread) {
    workers_.emplace_back([this, thread] { serve(thread); });
  }
}

Team::~Team() {
  ending_.store(true, std::memory_order_release);
  started_.advance();
  for (std::thread& worker : workers_) worker.join();
}

void Team::run(const std::function<void(int)>& task) {
  task_ = &task;
  started_.advance();
  task(0);
  barrier();
}

void Team::barrier() {
  if (threads_ == 1) return;
  uint32_t generation = met_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    met_.advance();
  } else {
    met_.wait_past(generation);
  }
}

void Team::split(int64_t items, const std::function<void(int64_t, int64_t)>& range) {
  run([&](int thread) { range(items * thread / threads_, items * (thread + 1) / threads_); });
}

void Team::serve(int thread) {
  for (uint32_t seen = 0;;) {
    started_.wait_past(seen);
    if (ending_.load(std::memory_order_acquire)) return;
    ++seen;
    (*task_)(thread);
    barrier();
  }
}

}  // namespace farthing
