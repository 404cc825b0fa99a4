// The CPU backend's trace clock: the stream's own thread reads the time when it reaches a stamp. Owns nothing. Any
// thread.
#pragma once

#include "offload/device/trace_clock.h"

namespace headrace {

class CpuTraceClock final : public TraceClock {
 public:
  void stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) override;
  void collect() override {}
  int64_t host_ns(int64_t stamp_ns) const override { return stamp_ns; }
};

}  // namespace headrace
