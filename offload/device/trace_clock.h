// What a trace is made of: slices, and the clock of a backend that turns places in a stream's order into times. Slices
// are owned by the Trace; a clock keeps pointers to them until it has stamped them. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "offload/device/stream.h"

namespace headrace {

enum class TraceTrack : uint8_t { kHost, kCompute, kHostToDevice, kDeviceToHost, kWithinDevice, kDisk };
constexpr size_t kTraceTracks = 6;
// Work of the host's own threads: its times are steady_clock's.
constexpr bool on_host_clock(TraceTrack track) { return track == TraceTrack::kHost || track == TraceTrack::kDisk; }

enum class TraceEdge : uint8_t { kBegin, kEnd };

// One thing that took time, on the clock's scale; the host's own slices, and the disk's, are on the host's.
struct TraceSlice {
  static constexpr int64_t kUnknown = INT64_MIN;  // the stream never came there: it failed before

  void stamp(TraceEdge edge, int64_t ns) {
    (edge == TraceEdge::kBegin ? begin_ns : end_ns).store(ns, std::memory_order_release);
  }

  TraceName name;
  TraceTrack track = TraceTrack::kHost;
  Link link = Link::kWithinDevice;  // of a copy
  uint64_t bytes = 0;               // of a copy; 0: it is none
  std::atomic<int64_t> begin_ns{kUnknown}, end_ns{kUnknown};
};

class TraceClock {
 public:
  TraceClock() = default;
  virtual ~TraceClock() = default;
  TraceClock(const TraceClock&) = delete;
  TraceClock& operator=(const TraceClock&) = delete;

  // Asynchronous: the slice gets the time at which the stream comes here, at the latest from collect().
  virtual void stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) = 0;
  // All stamps asked for so far are in their slices. REQUIRES: the streams are idle, or gone.
  virtual void collect() = 0;
  // A stamp as std::chrono::steady_clock has it. REQUIRES: collected.
  virtual int64_t host_ns(int64_t stamp_ns) const = 0;
};

}  // namespace headrace
