// A trace of a run for ui.perfetto.dev and chrome://tracing: what each stream did, and when. Streams report their
// copies themselves; TraceSpan and TraceStep name the work of compute streams, HostSpan that of the host. Without a
// trace each of these costs one pointer check.
//
// Bounded, so that viewers can open the file: the first kTracedSteps decode steps of each run; of each prefill its
// layers and kPrefillDetails slices inside them; kMaxSlices in all. The file reports how many were dropped.
//
// Owns its file, its slices and the backend's clock. Any thread may record; begin_run(), begin_step() and finish() are
// for one.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "offload/device/trace_clock.h"
#include "offload/device/trace_file.h"
#include "offload/host/thread_annotations.h"

namespace headrace {

class Trace {
 public:
  static constexpr int64_t kTracedSteps = 32, kPrefillDetails = 16384, kMaxSlices = 131072;

  // Creates the file with an empty trace, so that an unwritable file fails before the work begins. Throws Error:
  // kStorage for the file system, kBadInput for a file that holds something other than a trace.
  explicit Trace(const std::string& path);
  ~Trace();  // writes the file if finish() was not called: for error paths
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  void start(std::string device, std::unique_ptr<TraceClock> clock);

  // Reads the times back and writes the file; nothing is recorded afterwards. REQUIRES: the streams are idle or
  // destroyed. Throws Error(kStorage).
  TraceSummary finish();
  bool finished() const { return finished_; }

  // Whether work enqueued now becomes slices. If so, it must not run as a CUDA graph, whose parts have no times.
  bool recording() const { return recording_.load(std::memory_order_relaxed); }

  void begin_run();      // a prompt and its answer, starting with prefill
  void skip_run();       // excludes a run, such as a warm-up: nothing is recorded until the next begin_run()
  int64_t begin_step();  // the decode step's number in its run, from 1

  // ---- for spans and streams ----
  enum class Weight : uint8_t { kOutline, kDetail };
  // Null if the trace does not record or is full.
  TraceSlice* claim(TraceTrack track, TraceName name, Weight weight);
  void stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) { clock_->stamp(stream, slice, edge); }
  const char* keep(std::string_view name);  // valid as long as the trace

  static constexpr char kStep[] = "step", kPartOfStep[] = "step, not whole";

 private:
  void close_step();
  bool room_for_step() const;
  std::vector<TimedSlice> timed_slices();

  TraceFile file_;
  TraceSummary summary_;
  std::string device_;
  int64_t origin_ns_ = 0;
  const std::unique_ptr<TraceSlice[]> slices_;
  std::unique_ptr<TraceClock> clock_;
  std::atomic<int64_t> claimed_{0}, dropped_slices_{0}, details_left_{kPrefillDetails};
  std::atomic<bool> recording_{false}, overflowed_{false};
  bool finished_ = false;
  std::atomic<bool> skipping_{false};
  int64_t run_steps_ = 0, step_begin_ = 0, largest_step_ = 0;
  TraceSlice* step_ = nullptr;  // the last recorded step
  Mutex names_mutex_;
  std::deque<std::string> names_ GUARDED_BY(names_mutex_);
};

// Work enqueued on a compute stream during its lifetime is one slice. Spans nest. Thread: the enqueuing one.
class TraceSpan {
 public:
  TraceSpan(Stream& stream, TraceName name) {
    if (stream.tracing().trace != nullptr) [[unlikely]]
      begin(stream, name);
  }
  ~TraceSpan() {
    if (stream_ != nullptr) [[unlikely]]
      end();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void begin(Stream& stream, TraceName name);
  void end() noexcept;

  Stream* stream_ = nullptr;  // null: not traced
  TraceSlice* slice_ = nullptr;
};

// A span for a decode step, which the trace counts.
class TraceStep {
 public:
  explicit TraceStep(Stream& stream) : span_(stream, next(stream.tracing().trace)) {}

 private:
  static TraceName next(Trace* trace) { return trace ? TraceName(Trace::kStep, trace->begin_step()) : TraceName(); }
  TraceSpan span_;
};

// Work of the calling thread during its lifetime. `trace` may be null.
class HostSpan {
 public:
  HostSpan(Trace* trace, TraceName name);
  ~HostSpan();
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  TraceSlice* slice_ = nullptr;
};

}  // namespace headrace
