// A hash of what is enqueued on a stream: each call's function, in order, and the parameters of
// copies and of kernels whose structs have no padding. With it a Replay checks that
// equal keys mean equal calls. Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

class CallHash {
 public:
  // Bytes whose values are all defined: no padding.
  void add(const void* data, size_t bytes);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace headrace
