// The limits of this machine on one tier and one team: what memory delivers, what the ports
// multiply.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "platform.h"
#include "team.h"

namespace farthing {

// Measures; nothing of a model is needed. Not for several threads at once.
class Ceilings {
 public:
  // Two buffers of `bytes` (rounded down to whole pages for each thread), written once: one in the
  // system's ordinary pages, one in huge pages where the system grants them.
  Ceilings(const Kernels& kernels, int threads, int64_t bytes);  // throws std::bad_alloc

  // Bytes a second that the team reads of a buffer, once through, fetching `ahead` bytes ahead of
  // its loads (0: leaving that to the processor).
  double read(bool huge_pages, int64_t ahead);
  // Multiply-accumulates a second of the mode's product, over about `seconds`.
  double multiply(Mode mode, double seconds);

  const Kernels& kernels() const { return kernels_; }
  int64_t bytes() const { return share_ * team_.threads(); }

 private:
  const Kernels& kernels_;
  Team team_;
  const int64_t share_;  // one thread's part of a buffer
  Pages ordinary_, huge_;
};

}  // namespace farthing
