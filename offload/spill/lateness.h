// How much later than without verifying extents are taken that a disk brings through a ring of slots: worked out beside
// what happens. A read begins when its slot is free and the disk gets to it, an extent is taken when its taker comes
// and it is there: each is the later one of two times. Were nothing verified, each of the two would be earlier by what
// it is late, and so is known what their maximum would be. Where a taker waits for the disk anyway, what it was late is
// gone. Never too small for a disk that does one extent after another at the same pace with and without. Owns two
// numbers. Thread: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace {

class Lateness {
 public:
  int64_t taker_ns() const { return taker_; }

  // The taker has the disk begin, with all slots free. Returns what each of them comes free late by.
  [[nodiscard]] int64_t starts() { return disk_ = taker_; }
  // A read begins, after `idle_ns` in which the disk had none and waited for a slot (0: it did not), in a slot that
  // came free late by `slot_late_ns`. Returns what its arrival will be late by.
  int64_t begins(int64_t idle_ns, int64_t slot_late_ns) {
    return disk_ = idle_ns > 0 ? std::min(disk_ + idle_ns, slot_late_ns) : disk_;
  }
  // The taker came at `ready_ns`, the extent at `arrived_ns`, and was taken at `taken_ns`, once it was verified.
  void takes(int64_t ready_ns, int64_t arrived_ns, int64_t arrived_late_ns, int64_t taken_ns) {
    taker_ = taken_ns - std::max(ready_ns - taker_, arrived_ns - arrived_late_ns);
  }

 private:
  int64_t taker_ = 0, disk_ = 0;
};

}  // namespace headrace
