// Hard memory limits, one per tier. Every allocation reserves from one, weights included. Exceeding it is an Error that
// names the request, its purpose and the free bytes, with exit code 4. Owns only the count. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "offload/host/thread_annotations.h"

namespace headrace {

class MemoryBudget {
 public:
  // `flag` is the user's flag for it ("--vram"). A child's bytes also count against its parent (on the CPU the device
  // tier is part of host memory). The parent must outlive the child.
  MemoryBudget(std::string flag, uint64_t limit_bytes, MemoryBudget* parent = nullptr);
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;
  ~MemoryBudget();  // CHECKs that all reservations were returned

  // Returns its bytes when destroyed. Move-only.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation();
    uint64_t bytes() const { return bytes_; }

   private:
    friend class MemoryBudget;
    MemoryBudget* budget_ = nullptr;
    uint64_t bytes_ = 0;
  };

  // Throws Error(kDoesNotFit): "--vram: needs 1.20 GiB for weights, 800.00 MiB of 2.00 GiB are free". Names the parent
  // if the parent lacks the room.
  [[nodiscard]] Reservation reserve(uint64_t bytes, std::string_view what);

  const std::string& flag() const { return flag_; }
  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t used_bytes() const;
  uint64_t peak_bytes() const;
  uint64_t own_peak_bytes() const;  // without the children's
  uint64_t free_bytes() const;      // could be reserved now, within the parent's limit too
  void reset_peak();                // sets the peaks to the current use

 private:
  struct Refusal {
    const MemoryBudget* budget = nullptr;
    uint64_t free_bytes = 0;
  };
  bool try_add(uint64_t bytes, Refusal* refusal);  // all or nothing, in the parent too
  void release(uint64_t bytes) noexcept;
  void count_own(int64_t bytes) noexcept;

  const std::string flag_;
  const uint64_t limit_bytes_;
  MemoryBudget* const parent_;
  mutable Mutex mutex_;
  uint64_t used_bytes_ GUARDED_BY(mutex_) = 0, peak_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t own_used_bytes_ GUARDED_BY(mutex_) = 0, own_peak_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace headrace
