// The time between two places in a stream's order, without a wait: the host reads it once the stream has come past
// both. On CUDA two events, on the CPU the stream's own thread looks at the clock. Owns its events; the stream must
// have run what was asked of it before it goes. Thread: one at a time, that which enqueues on the stream.
#pragma once

#include <memory>

#include "offload/device/stream.h"

namespace headrace {

class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Asynchronous. Not while the stream records a graph.
  virtual void start(Stream& stream) = 0;
  virtual void stop(Stream& stream) = 0;
  // REQUIRES: started and stopped, in this order, and the stream has come to both.
  virtual double ms() const = 0;

 protected:
  Stopwatch() = default;
};

// For streams like this one.
std::unique_ptr<Stopwatch> make_stopwatch(Stream& stream);

}  // namespace headrace
