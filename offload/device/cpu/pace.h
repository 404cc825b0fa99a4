// Paces copies to the speed of a given link, for tests and demonstrations on a machine without one. One per direction,
// shared by all streams of a device. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "offload/host/thread_annotations.h"

namespace headrace {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Pace(double gb_per_s) : gb_per_s_(gb_per_s) {}  // 0: not paced

  // Claims the link for `bytes`; returns the time at which the last of them has crossed.
  Clock::time_point claim(uint64_t bytes);

 private:
  const double gb_per_s_;
  Mutex mutex_;
  Clock::time_point free_from_ GUARDED_BY(mutex_){};
};

}  // namespace headrace
