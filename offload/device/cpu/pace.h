// Makes copies take as long as a link of a given speed would: for tests and demonstrations on a machine without one.
// One a direction, shared by all streams of a device. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "offload/host/thread_annotations.h"

namespace headrace {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Pace(double gb_per_s) : gb_per_s_(gb_per_s) {}  // 0: as fast as memory

  // Claims the link for `bytes`; returns when the last of them would be across.
  Clock::time_point claim(uint64_t bytes);

 private:
  const double gb_per_s_;
  Mutex mutex_;
  Clock::time_point free_from_ GUARDED_BY(mutex_){};
};

}  // namespace headrace
