// Pinned memory that a thread of its own takes: zeroing and pinning gigabytes takes the system a good part of a second,
// and other work can go on meanwhile. The budget is asked there too; whatever is thrown comes out of get(). Owns the
// buffer; waits for the thread when destroyed. Thread: one at a time.
#pragma once

#include <cstdint>
#include <future>
#include <string>

#include "offload/device.h"

namespace headrace {

class PinnedLater {
 public:
  PinnedLater() = default;  // nothing is taken: get() is empty
  PinnedLater(Device& device, uint64_t bytes, std::string what);

  bool begun() const { return begun_; }
  // Blocks until it is there. An error is thrown once; what follows is empty.
  const PinnedBuffer& get();
  double ms() const { return taken_.ms; }  // that it took the thread; known after get()

 private:
  struct Taken {
    PinnedBuffer buffer;
    double ms = 0;
  };
  static Taken take(Device& device, uint64_t bytes, const std::string& what);

  bool begun_ = false;
  Taken taken_;
  std::future<Taken> coming_;  // valid until it has come
};

}  // namespace headrace
