#include "team.h"

#include "platform.h"

namespace farthing {
namespace {

// Long enough to cover the gap between two phases, short enough to yield the core soon when
// somebody else could use it.
constexpr int kSpins = 2000;

constexpr uint32_t kOpen = 1, kInside = 2;  // of Team::inside_

}  // namespace

void Signal::wake() {
  if (sleepers_.load() > 0) value_.notify_all();
}

template <class Done>
uint32_t Signal::wait_until(Done done) {
  uint32_t seen;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (done(seen = value_.load(std::memory_order_acquire))) return seen;
    relax();
  }
  // Whoever changes the value looks for sleepers afterwards: it sees this one, or this one sees it.
  sleepers_.fetch_add(1);
  while (!done(seen = value_.load())) value_.wait(seen);
  sleepers_.fetch_sub(1);
  return seen;
}

void Signal::wait_for(uint32_t wanted) {
  wait_until([=](uint32_t value) { return value == wanted; });
}

uint32_t Signal::wait_past(uint32_t seen) {
  return wait_until([=](uint32_t value) { return value != seen; });
}

Team::Team(int threads) : threads_(threads) {
  try {
    for (int thread = 1; thread < threads_; ++thread) {
      workers_.emplace_back([this, thread] { serve(thread); });
    }
  } catch (...) {  // the system has no more threads; those it gave must not outlive the team
    end();
    throw;
  }
}

Team::~Team() { end(); }

void Team::end() {
  ending_.store(true, std::memory_order_release);
  offers_.add(1);
  offers_.wake();
  for (std::thread& worker : workers_) worker.join();
}

void Team::offer(const std::function<void(int)>& task) {
  if (threads_ == 1) return task(0);
  task_ = &task;
  inside_.add(kOpen);
  offers_.add(1);
  offers_.wake();
  task(0);
  inside_.add(-kOpen);
  inside_.wait_for(0);
}

void Team::run(const std::function<void(int)>& task) {
  std::atomic<int> next{0};
  offer([&](int) {
    for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < threads_;) task(i);
  });
}

void Team::split(int64_t items, const std::function<void(int64_t, int64_t)>& range) {
  run([&](int i) { range(items * i / threads_, items * (i + 1) / threads_); });
}

void Team::serve(int thread) {
  for (uint32_t seen = 0;;) {
    seen = offers_.wait_past(seen);
    if (ending_.load(std::memory_order_acquire)) return;
    if (!enter()) continue;
    seen = offers_.value();  // a newer one, perhaps, than that which woke this thread
    (*task_)(thread);
    leave();
  }
}

// False if the offer is closed.
bool Team::enter() {
  if (inside_.add(kInside) & kOpen) return true;
  leave();
  return false;
}

void Team::leave() {
  if (inside_.add(-kInside) == 0) inside_.wake();
}

void Phases::reset() {
  for (int i = 0; i < count_ * threads_; ++i) taken_[i].next.store(0, std::memory_order_relaxed);
  for (int i = 0; i < count_; ++i) done_[i].count.set(0);
  passed_.store(0, std::memory_order_relaxed);
}

void Phases::finish(int phase, int done) {
  Done& all = done_[phase];
  if (all.count.add(static_cast<uint32_t>(done)) ==
      static_cast<uint32_t>(all.items.load(std::memory_order_relaxed))) {
    all.count.wake();
  }
}

void Phases::wait(int phase) {
  Done& all = done_[phase];
  all.count.wait_for(static_cast<uint32_t>(all.items.load(std::memory_order_relaxed)));
  // Threads may set it out of order, and so back: that only makes a late one walk further.
  if (!passed(phase)) passed_.store(phase + 1, std::memory_order_release);
}

}  // namespace farthing
