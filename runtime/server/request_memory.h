// The host memory that requests take beside runs: a part of --host-mem, which runs then do not have. A request takes
// what reading it can need at most before it is parsed, and keeps what its text and tokens need until it is answered.
// Few are read at a time. Thread: any. A Share belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "offload/device/budget.h"
#include "offload/host/thread_annotations.h"
#include "runtime/requests/request.h"
#include "runtime/server/failure.h"

namespace headrace {

class RequestMemory {
 public:
  // The part that requests have: enough for the longest body with files and for those that wait, but at most an eighth
  // of what the model has left of --host-mem.
  static uint64_t part_of(uint64_t host_free_bytes, uint64_t longest_body_bytes, int64_t queue);
  explicit RequestMemory(MemoryBudget::Reservation all) : all_(std::move(all)) {}

  // What a request has taken. Returned on destruction.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept;
    ~Share() { give_back(0); }
    // The request has been read: it needs no more than this.
    void keep(uint64_t bytes) { give_back(bytes); }

   private:
    friend class RequestMemory;
    void give_back(uint64_t rest);

    RequestMemory* memory_ = nullptr;
    uint64_t bytes_ = 0;
    bool reads_ = false;
  };

  // What the files of a request may take: no text if it names none, and at most as much as the memory holds.
  FileRules file_rules(std::string_view body) const;

  // `body_bytes`: the body's, and those of its files' text. Waits while others are read. A failure: 413, or 503 while
  // others have the memory.
  std::optional<Failure> take(uint64_t body_bytes, Share* share);

 private:
  const MemoryBudget::Reservation all_;
  Mutex mutex_;
  CondVar left_;
  uint64_t used_bytes_ GUARDED_BY(mutex_) = 0;
  int reading_ GUARDED_BY(mutex_) = 0;
};

}  // namespace headrace
