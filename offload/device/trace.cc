#include "offload/device/trace.h"

#include <algorithm>
#include <utility>

#include "cache/base.h"
#include "offload/host/clock.h"

namespace headrace {
namespace {

constexpr int64_t kKeptForHost = 4096;  // of kMaxSlices, reserved for the host's slices, which structure the trace

struct Window {
  int64_t begin_ns, end_ns;
};

// The time of decoding: one window per run, from its first step to its last traced one.
std::vector<Window> decode_windows(const std::vector<TimedSlice>& slices, TraceSummary* summary) {
  std::vector<Window> windows;
  for (const TimedSlice& slice : slices) {
    if (slice.name.text != Trace::kStep) continue;
    ++summary->steps;
    if (slice.name.number == 1 || windows.empty()) windows.push_back({slice.begin_ns, slice.end_ns});
    windows.back().end_ns = slice.end_ns;
  }
  return windows;
}

void measure_link(const std::vector<TimedSlice>& slices, TraceSummary* summary) {
  std::vector<TimedSlice> in;
  std::copy_if(slices.begin(), slices.end(), std::back_inserter(in), [](const TimedSlice& slice) {
    return slice.bytes > 0 && slice.link == Link::kHostToDevice && !on_host_clock(slice.track);
  });
  std::sort(in.begin(), in.end(), [](const TimedSlice& a, const TimedSlice& b) { return a.begin_ns < b.begin_ns; });
  double decode_ns = 0, busy_ns = 0, bytes = 0;
  for (const Window& window : decode_windows(slices, summary)) {
    decode_ns += static_cast<double>(window.end_ns - window.begin_ns);
    int64_t busy_until = window.begin_ns;  // copies of two streams may overlap
    for (const TimedSlice& copy : in) {
      const int64_t begin = std::max(copy.begin_ns, window.begin_ns), end = std::min(copy.end_ns, window.end_ns);
      if (begin >= end) continue;
      busy_ns += static_cast<double>(std::max(end - std::max(begin, busy_until), int64_t{0}));
      busy_until = std::max(busy_until, end);
      bytes += static_cast<double>(copy.bytes) * static_cast<double>(end - begin) /
               static_cast<double>(copy.end_ns - copy.begin_ns);
    }
  }
  summary->decode_s = decode_ns / 1e9;
  summary->link_busy_s = busy_ns / 1e9;
  summary->link_bytes = static_cast<uint64_t>(bytes);
}

}  // namespace

Trace::Trace(const std::string& path)
    : file_(path), slices_(std::make_unique<TraceSlice[]>(static_cast<size_t>(kMaxSlices))) {}

Trace::~Trace() {
  try {
    if (!finished_ && clock_ != nullptr) finish();
  } catch (...) {  // another error is being reported
  }
}

void Trace::start(std::string device, std::unique_ptr<TraceClock> clock) {
  device_ = std::move(device);
  clock_ = std::move(clock);
  origin_ns_ = host_now_ns();
  recording_ = true;
}

// Drops an incomplete step, which would make the link look idle.
void Trace::close_step() {
  if (step_ != nullptr && overflowed_) step_->name.text = kPartOfStep;
  if (step_ != nullptr) largest_step_ = std::max(largest_step_, claimed_.load() - step_begin_);
  step_ = nullptr;
  overflowed_ = false;
}

void Trace::begin_run() {
  close_step();
  run_steps_ = 0;
  skipping_ = false;
  details_left_ = kPrefillDetails;
  recording_ = !finished_;
}

void Trace::skip_run() {
  close_step();
  run_steps_ = 0;
  skipping_ = true;
  recording_ = false;
}

int64_t Trace::begin_step() {
  close_step();
  step_begin_ = claimed_.load();
  const int64_t number = ++run_steps_;
  if (skipping_) return number;
  recording_ = !finished_ && number <= kTracedSteps && room_for_step();
  if (!recording()) ++summary_.dropped_steps;
  details_left_ = kMaxSlices;  // steps are recorded in full
  return number;
}

bool Trace::room_for_step() const {
  return kMaxSlices - kKeptForHost - claimed_.load() >= std::max<int64_t>(largest_step_, 1);
}

TraceSlice* Trace::claim(TraceTrack track, TraceName name, Weight weight) {
  const bool host = track == TraceTrack::kHost;
  if (!recording() && (!host || finished_ || skipping_)) return nullptr;
  const bool wanted = weight == Weight::kOutline || details_left_.fetch_sub(1, std::memory_order_relaxed) > 0;
  const int64_t limit = wanted ? kMaxSlices - (host ? 0 : kKeptForHost) : 0;
  int64_t index = claimed_.load();
  while (index < limit && !claimed_.compare_exchange_weak(index, index + 1)) {
  }
  if (index >= limit) {
    if (wanted) overflowed_ = true;
    dropped_slices_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  TraceSlice& slice = slices_[static_cast<size_t>(index)];
  slice.name = name;
  slice.track = track;
  if (name.text == kStep) step_ = &slice;
  return &slice;
}

const char* Trace::keep(std::string_view name) {
  const MutexLock lock(names_mutex_);
  const auto known = std::find(names_.begin(), names_.end(), name);
  return known != names_.end() ? known->c_str() : names_.emplace_back(name).c_str();
}

// Slices in enqueue order, with times since the trace began. A slice without times belongs to a stream that failed.
std::vector<TimedSlice> Trace::timed_slices() {
  std::vector<TimedSlice> timed;
  const int64_t claimed = claimed_.load();
  timed.reserve(static_cast<size_t>(claimed));
  for (int64_t i = 0; i < claimed; ++i) {
    const TraceSlice& slice = slices_[static_cast<size_t>(i)];
    const int64_t begin = slice.begin_ns.load(std::memory_order_acquire),
                  end = slice.end_ns.load(std::memory_order_acquire);
    if (begin == TraceSlice::kUnknown || end == TraceSlice::kUnknown) {
      dropped_slices_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    const bool host = on_host_clock(slice.track);
    const auto since = [&](int64_t ns) { return (host ? ns : clock_->host_ns(ns)) - origin_ns_; };
    timed.push_back({slice.name, slice.track, slice.link, slice.bytes, since(begin), since(end)});
  }
  return timed;
}

TraceSummary Trace::finish() {
  CHECK(clock_ != nullptr && !finished_);
  recording_ = false;
  finished_ = true;
  close_step();
  clock_->collect();
  const std::vector<TimedSlice> slices = timed_slices();
  summary_.path = file_.path();
  summary_.slices = static_cast<int64_t>(slices.size());
  summary_.dropped_slices = dropped_slices_;
  measure_link(slices, &summary_);
  file_.write(slices, summary_, device_);
  return summary_;
}

// ---- spans ----

void TraceSpan::begin(Stream& stream, TraceName name) {
  StreamTracing& tracing = stream.tracing();
  const Trace::Weight weight = tracing.open_spans > 0 ? Trace::Weight::kDetail : Trace::Weight::kOutline;
  stream_ = &stream;
  ++tracing.open_spans;
  slice_ = tracing.trace->claim(TraceTrack::kCompute, name, weight);
  if (slice_ == nullptr) return;
  try {
    tracing.trace->stamp(stream, *slice_, TraceEdge::kBegin);
  } catch (...) {  // the destructor will not run
    --tracing.open_spans;
    throw;
  }
}

void TraceSpan::end() noexcept {
  StreamTracing& tracing = stream_->tracing();
  --tracing.open_spans;
  if (slice_ == nullptr) return;
  try {
    tracing.trace->stamp(*stream_, *slice_, TraceEdge::kEnd);
  } catch (...) {  // the device has failed and reports that at the next call; the slice has no end
  }
}

HostSpan::HostSpan(Trace* trace, TraceName name) {
  if (trace == nullptr) return;
  slice_ = trace->claim(TraceTrack::kHost, name, Trace::Weight::kOutline);
  if (slice_ != nullptr) slice_->stamp(TraceEdge::kBegin, host_now_ns());
}

HostSpan::~HostSpan() {
  if (slice_ != nullptr) slice_->stamp(TraceEdge::kEnd, host_now_ns());
}

// Copies on a copy stream are the tracks of the links; copies on a compute stream appear between its kernels, which
// they delay.
void Stream::traced_copy(const std::function<void()>& copy, size_t bytes, Link link, TraceName what) {
  Trace& trace = *tracing_.trace;
  const bool computes = tracing_.role == StreamRole::kCompute;
  const TraceTrack track = computes                      ? TraceTrack::kCompute
                           : link == Link::kHostToDevice ? TraceTrack::kHostToDevice
                           : link == Link::kDeviceToHost ? TraceTrack::kDeviceToHost
                                                         : TraceTrack::kWithinDevice;
  const bool detail = tracing_.open_spans > 0 || (!computes && link == Link::kWithinDevice);
  if (what.text == nullptr) what.text = computes ? "copy" : tracing_.name;
  TraceSlice* const slice =
      bytes == 0 ? nullptr : trace.claim(track, what, detail ? Trace::Weight::kDetail : Trace::Weight::kOutline);
  if (slice == nullptr) return copy();
  slice->link = link;
  slice->bytes = bytes;
  trace.stamp(*this, *slice, TraceEdge::kBegin);
  copy();
  trace.stamp(*this, *slice, TraceEdge::kEnd);
}

}  // namespace headrace
