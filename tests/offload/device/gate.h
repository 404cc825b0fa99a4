// Holds a stream until the gate is opened, or for a time, on either backend: what makes "not yet" testable. On CUDA a
// kernel of one thread looks at a word in host memory: gate_cuda.cu, or gate_no_cuda.cc in its place.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "offload/device/device.h"

namespace headrace {

class Gate {
 public:
  // Only a test that hangs reaches the limit.
  explicit Gate(Device& device, std::chrono::nanoseconds limit = std::chrono::seconds(30));
  ~Gate() { open(); }  // streams that it holds must be idle before it goes
  void hold(Stream& stream);
  void open() { std::atomic_ref(*word_).store(1); }

 private:
  const std::chrono::nanoseconds limit_;
  PinnedBuffer memory_;
  uint32_t* const word_;
};

void hold_cuda(Stream& stream, const uint32_t* word, std::chrono::nanoseconds limit);

}  // namespace headrace
