// The parts of a trace: slices, and a backend's clock, which turns positions in a stream into times. The Trace owns the
// slices; a clock keeps pointers to them until it has stamped them. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "offload/device/stream.h"

namespace headrace {

enum class TraceTrack : uint8_t { kHost, kCompute, kHostToDevice, kDeviceToHost, kWithinDevice, kDisk };
constexpr size_t kTraceTracks = 6;
// Tracks of the host's own threads, with steady_clock times.
constexpr bool on_host_clock(TraceTrack track) { return track == TraceTrack::kHost || track == TraceTrack::kDisk; }

enum class TraceEdge : uint8_t { kBegin, kEnd };

// One piece of work, with times on the backend's clock; slices of the host and the disk use the host's clock.
struct TraceSlice {
  static constexpr int64_t kUnknown = INT64_MIN;  // the stream never reached it, because it failed

  void stamp(TraceEdge edge, int64_t ns) {
    (edge == TraceEdge::kBegin ? begin_ns : end_ns).store(ns, std::memory_order_release);
  }

  TraceName name;
  TraceTrack track = TraceTrack::kHost;
  Link link = Link::kWithinDevice;  // of a copy
  uint64_t bytes = 0;               // of a copy; 0: not a copy
  std::atomic<int64_t> begin_ns{kUnknown}, end_ns{kUnknown};
};

class TraceClock {
 public:
  TraceClock() = default;
  virtual ~TraceClock() = default;
  TraceClock(const TraceClock&) = delete;
  TraceClock& operator=(const TraceClock&) = delete;

  // Asynchronous: stores the time at which the stream reaches this point, at the latest in collect().
  virtual void stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) = 0;
  // Stores all outstanding stamps. REQUIRES: the streams are idle or destroyed.
  virtual void collect() = 0;
  // Converts a stamp to std::chrono::steady_clock. REQUIRES: collected.
  virtual int64_t host_ns(int64_t stamp_ns) const = 0;
};

}  // namespace headrace
