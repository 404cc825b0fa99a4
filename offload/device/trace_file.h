// The file of a trace, in Chrome's trace event format, and what a trace comes to. Owns the file. Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/device/trace_clock.h"

namespace headrace {

// A slice whose times are known, in ns since the trace began.
struct TimedSlice {
  TraceName name;
  TraceTrack track;
  Link link;
  uint64_t bytes;
  int64_t begin_ns, end_ns;
};

// What a trace came to.
struct TraceSummary {
  std::string path;
  int64_t slices = 0, dropped_slices = 0;
  int64_t steps = 0, dropped_steps = 0;  // of decoding
  double decode_s = 0;                   // from each run's first step to the end of its last one in the trace
  double link_busy_s = 0;                // of that, with bytes on their way to the device
  uint64_t link_bytes = 0;               // that came meanwhile
  double busy_share() const { return decode_s > 0 ? link_busy_s / decode_s : 0; }
  double gb_per_s() const { return link_busy_s > 0 ? static_cast<double>(link_bytes) / link_busy_s / 1e9 : 0; }
};

// Slices of one track in the order in which they were enqueued. Those that overlap without lying inside each other are
// put on lanes of their own: a viewer would draw them wrongly on one. On the tracks of copies nothing lies inside
// anything. Returns each one's lane, from 0; may move times by up to a microsecond, which is what clocks err by, so
// that what is inside stays inside.
std::vector<int> trace_lanes(std::vector<TimedSlice>* slices);

class TraceFile {
 public:
  // Creates it, with an empty trace in it. Throws Error: kStorage, or kBadInput for a file that holds something else.
  explicit TraceFile(std::string path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // `device` names the process in the viewer. Throws Error(kStorage); the empty trace is then what the file holds, if
  // anything can be written to it.
  void write(std::vector<TimedSlice> slices, const TraceSummary& summary, const std::string& device);

  const std::string& path() const { return path_; }

 private:
  void write_empty();

  const std::string path_;
  int fd_ = -1;
  bool regular_ = false;  // not a pipe, where nothing can be written twice
};

}  // namespace headrace
