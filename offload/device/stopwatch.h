// Measures the time between two points of a stream without waiting: the host reads it once the stream has passed both.
// On CUDA with two events; on the CPU the stream's thread reads the clock. Owns its events; the stream must have passed
// both points before it is destroyed. Thread: one at a time, the one that enqueues on the stream.
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
  // REQUIRES: started, then stopped, and the stream has passed both points.
  virtual double ms() const = 0;

 protected:
  Stopwatch() = default;
};

// For streams like this one.
std::unique_ptr<Stopwatch> make_stopwatch(Stream& stream);

}  // namespace headrace
