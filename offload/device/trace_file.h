// The file of a trace, in Chrome's trace event format, and the summary of a trace. Owns the file. Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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

// Totals of a trace.
struct TraceSummary {
  std::string path;
  int64_t slices = 0, dropped_slices = 0;
  int64_t steps = 0, dropped_steps = 0;  // of decoding
  double decode_s = 0;                   // from each run's first decode step to the end of its last traced one
  double link_busy_s = 0;                // of that, time with a transfer to the device in progress
  uint64_t link_bytes = 0;               // transferred in that time
  double busy_share() const { return decode_s > 0 ? link_busy_s / decode_s : 0; }
  double gb_per_s() const { return link_busy_s > 0 ? static_cast<double>(link_bytes) / link_busy_s / 1e9 : 0; }
};

// Takes the slices of one track in enqueue order. Slices that overlap without nesting get separate lanes, because a
// viewer would draw them wrongly on one. Slices of copy tracks never nest. Returns the lane of each slice, from 0. May
// move times by up to a microsecond, the clocks' error, so that nested slices stay nested.
std::vector<int> trace_lanes(std::vector<TimedSlice>* slices);

class TraceFile {
 public:
  // Creates it with an empty trace. Throws Error: kStorage, or kBadInput for a file that holds something else.
  explicit TraceFile(std::string path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // `device` names the process in the viewer. Throws Error(kStorage); the file then holds the empty trace again, if it
  // can be written at all.
  void write(const std::vector<TimedSlice>& slices, const TraceSummary& summary, const std::string& device);

  const std::string& path() const { return path_; }

 private:
  void write_text(std::string_view text);  // in place of what it has

  const std::string path_;
  int fd_ = -1;
  bool regular_ = false;  // not a pipe, which cannot be rewritten
};

}  // namespace headrace
