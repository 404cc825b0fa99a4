// Hard memory limits, one a tier. Every allocation goes through one, weights included; over budget is one clear Error
// (asked, for what, free) with exit code 4. Owns nothing but the count. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "offload/host/thread_annotations.h"

namespace headrace {

class MemoryBudget {
 public:
  // `flag` is what the user sets it with ("--vram"). A child's bytes count against its parent as well (on the CPU the
  // device tier comes out of host memory). The parent must outlive the child.
  MemoryBudget(std::string flag, uint64_t limit_bytes, MemoryBudget* parent = nullptr);
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;
  ~MemoryBudget();  // CHECKs that all has been given back

  // Gives its bytes back when destroyed. Move-only.
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

  // Throws Error(kDoesNotFit): "--vram: needs 1.20 GiB for weights, 800.00 MiB of 2.00 GiB are free". When the parent
  // is what lacks the room, the parent is what the error names.
  [[nodiscard]] Reservation reserve(uint64_t bytes, std::string_view what);

  const std::string& flag() const { return flag_; }
  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t used_bytes() const;
  uint64_t peak_bytes() const;
  uint64_t own_peak_bytes() const;  // without the children's share
  uint64_t free_bytes() const;      // what could be reserved now, the parent's limit included
  void reset_peak();                // the peaks become what is used now

 private:
  struct Refusal {
    const MemoryBudget* budget = nullptr;
    uint64_t free_bytes = 0;
  };
  bool try_add(uint64_t bytes, Refusal* refusal);  // all or nothing, the parent included
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
