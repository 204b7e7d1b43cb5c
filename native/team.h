// A fixed team of threads that share out work, and never wait for a thread that has none in hand.
//
// Where the machine has fewer free cores than the team has threads, some thread is always waiting
// for a core. A barrier that needs all of them would then cost a turn of the system's scheduler;
// here a phase ends when its work is done, whoever did it, and a thread that comes late finds
// nothing left and catches up.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace farthing {

// A number that threads wait on: they spin for a while, then sleep in the kernel.
class Signal {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void set(uint32_t value) { value_.store(value, std::memory_order_relaxed); }  // wakes nobody
  uint32_t add(uint32_t amount) { return value_.fetch_add(amount) + amount; }   // wakes nobody
  void wake();  // everyone who sleeps
  // Return when the value is, or is no longer, `other`; the second gives what it then is.
  void wait_for(uint32_t wanted);
  uint32_t wait_past(uint32_t seen);

 private:
  template <class Done>
  uint32_t wait_until(Done done);

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// The caller is thread 0; the others sleep between calls. Not for several callers at once. Tasks
// must not throw.
class Team {
 public:
  explicit Team(int threads);  // throws std::system_error when the system has no more threads
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }
  // Calls task(0) here, and task(thread) on every thread that is awake before task(0) returns; one
  // that wakes just as the task is offered may call it again afterwards. Returns when all calls
  // have. So task must share out its work, and find none the second time: see Phases.
  void offer(const std::function<void(int)>& task);
  // Calls task(i) once for each i in [0, threads), at the same time if the threads find cores.
  void run(const std::function<void(int)>& task);
  // Splits [0, items) into a range for each thread.
  void split(int64_t items, const std::function<void(int64_t, int64_t)>& range);

 private:
  void serve(int thread);
  void end();
  bool enter();
  void leave();

  const int threads_;
  alignas(64) Signal offers_;  // how many there have been
  alignas(64) Signal inside_;  // twice the threads at work on this one, plus one while it is open
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<bool> ending_{false};
  std::vector<std::thread> workers_;
};

// The phases of one offered task, each some items dealt out so that a thread takes its own share
// first, in order, and then helps the others. Who computes an item never changes what it computes.
// Every thread goes through the phases in rising order and names the same number of items.
class Phases {
 public:
  Phases(int phases, int threads)
      : count_(phases),
        threads_(threads),
        taken_(std::make_unique<Taken[]>(static_cast<size_t>(phases) * threads)),
        done_(std::make_unique<Done[]>(phases)) {}

  void reset();  // before the task is offered

  // Calls body(item) for every item that nobody has taken.
  template <class Body>
  void each(int phase, int thread, int items, Body&& body) {
    Taken* shares = &taken_[static_cast<size_t>(phase) * threads_];
    int done = 0;
    for (int turn = 0; turn < threads_; ++turn) {
      int owner = (thread + turn) % threads_;
      int begin = static_cast<int>(static_cast<int64_t>(items) * owner / threads_);
      int end = static_cast<int>(static_cast<int64_t>(items) * (owner + 1) / threads_);
      for (;; ++done) {
        int item = begin + shares[owner].next.fetch_add(1, std::memory_order_relaxed);
        if (item >= end) break;
        body(item);
      }
    }
    std::atomic<int>& wanted = done_[phase].items;
    if (wanted.load(std::memory_order_relaxed) != items) {
      wanted.store(items, std::memory_order_relaxed);
    }
    if (done > 0) finish(phase, done);
  }
  // Returns when all items of the phase are done; this thread has called `each` for it.
  void wait(int phase);
  // Whether somebody has seen the end of this phase, or of a later one.
  bool passed(int phase) const { return passed_.load(std::memory_order_acquire) > phase; }

 private:
  struct alignas(64) Taken {
    std::atomic<int> next{0};
  };
  struct alignas(64) Done {
    Signal count;
    std::atomic<int> items{0};  // every thread writes the same number
  };
  void finish(int phase, int done);

  const int count_, threads_;
  std::unique_ptr<Taken[]> taken_;  // [phase][thread]
  std::unique_ptr<Done[]> done_;    // [phase]
  std::atomic<int> passed_{0};
};

}  // namespace farthing
