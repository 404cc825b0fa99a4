#include "offload/device/cpu/pace.h"

#include <algorithm>

namespace headrace {

Pace::Clock::time_point Pace::claim(uint64_t bytes) {
  // A sleeper wakes late. A copy that follows at once starts at the previous copy's nominal end, so lateness does not
  // accumulate.
  constexpr std::chrono::microseconds kLateness{200};
  const Clock::time_point now = Clock::now();
  if (gb_per_s_ <= 0) return now;
  const MutexLock lock(mutex_);
  const Clock::time_point start = std::max(free_from_, now - kLateness);
  const std::chrono::duration<double, std::nano> taken(static_cast<double>(bytes) / gb_per_s_);
  free_from_ = start + std::chrono::duration_cast<Clock::duration>(taken);
  return free_from_;
}

}  // namespace headrace
