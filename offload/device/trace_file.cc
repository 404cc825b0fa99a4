#include "offload/device/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

// The start of every trace. A file that starts differently belongs to somebody else.
constexpr std::string_view kHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
constexpr std::string_view kEmpty = "]}\n";
constexpr int64_t kClockErrorNs = 1000;

constexpr std::array<const char*, kTraceTracks> kTrackNames = {"run", "compute", "H2D", "D2H", "copies within device",
                                                               "disk"};
constexpr std::array<const char*, kLinkCount> kLinkNames = {"H2D", "D2H", "within device"};

[[noreturn]] void storage_error(const std::string& path, const char* what) {
  throw_error(ExitCode::kStorage, path, str(what, ": ", std::strerror(errno)), "name a file that can be written");
}

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

// A line of the file. Bytes that are not UTF-8 (in a file name) become U+FFFD.
std::string line_of(const ordered_json& event) {
  return event.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + ",\n";
}

std::string metadata(const char* what, int tid, const ordered_json& args) {
  return line_of({{"ph", "M"}, {"pid", 1}, {"tid", tid}, {"name", what}, {"args", args}});
}

// The number of a lane in the file, which also orders it in the viewer.
int lane_tid(TraceTrack track, int lane) { return static_cast<int>(track) * 100 + lane + 1; }

std::string slice_event(const TimedSlice& slice, int tid) {
  const std::string name = slice.name.number < 0 ? slice.name.text : str(slice.name.text, " ", slice.name.number);
  const int64_t ns = slice.end_ns - slice.begin_ns;
  ordered_json args = ordered_json::object();
  if (slice.bytes > 0) {
    const double rate = ns > 0 ? static_cast<double>(slice.bytes) / static_cast<double>(ns) : 0;
    args = {{"link", slice.track == TraceTrack::kDisk ? "disk" : kLinkNames[static_cast<size_t>(slice.link)]},
            {"bytes", slice.bytes},
            {"GB/s", std::round(rate * 1000) / 1000}};
  }
  return line_of({{"ph", "X"},
                  {"pid", 1},
                  {"tid", tid},
                  {"ts", microseconds(slice.begin_ns)},
                  {"dur", microseconds(ns)},
                  {"name", name},
                  {"args", args}});
}

std::string track_events(TraceTrack track, std::vector<TimedSlice> slices) {
  std::erase_if(slices, [track](const TimedSlice& slice) { return slice.track != track; });
  const std::vector<int> lanes = trace_lanes(&slices);
  std::string text;
  int named = 0;  // lanes are numbered in the order in which they begin
  for (size_t i = 0; i < slices.size(); ++i) {
    const int tid = lane_tid(track, lanes[i]);
    if (lanes[i] == named) {
      const std::string name = kTrackNames[static_cast<size_t>(track)];
      text += metadata("thread_name", tid, {{"name", named == 0 ? name : str(name, " ", named + 1)}});
      text += metadata("thread_sort_index", tid, {{"sort_index", tid}});
      ++named;
    }
    text += slice_event(slices[i], tid);
  }
  return text;
}

// A note about dropped slices, at the end of the trace.
std::string dropped_event(const TraceSummary& summary, const std::vector<TimedSlice>& slices) {
  if (summary.dropped_steps == 0 && summary.dropped_slices == 0) return "";
  int64_t end_ns = 0;
  for (const TimedSlice& slice : slices) end_ns = std::max(end_ns, slice.end_ns);
  return line_of(
      {{"ph", "i"},
       {"s", "g"},
       {"pid", 1},
       {"tid", 1},
       {"ts", microseconds(end_ns)},
       {"name", str("not recorded: ", summary.dropped_steps, " decode steps, ", summary.dropped_slices, " slices")},
       {"args", ordered_json::object()}});
}

std::string other_data(const TraceSummary& summary) {
  const ordered_json data = {{"slices", summary.slices},           {"dropped_slices", summary.dropped_slices},
                             {"decode_steps", summary.steps},      {"dropped_decode_steps", summary.dropped_steps},
                             {"decode_seconds", summary.decode_s}, {"h2d_busy_seconds", summary.link_busy_s},
                             {"h2d_bytes", summary.link_bytes}};
  return data.dump();
}

}  // namespace

std::vector<int> trace_lanes(std::vector<TimedSlice>* slices) {
  if (slices->empty()) return {};
  const bool nests = slices->front().track == TraceTrack::kCompute || slices->front().track == TraceTrack::kHost;
  int64_t last = slices->front().begin_ns;
  for (TimedSlice& slice : *slices) {  // nested slices were enqueued after the one around them
    if (last - kClockErrorNs <= slice.begin_ns && slice.begin_ns < last) slice.begin_ns = last;
    slice.end_ns = std::max(slice.end_ns, slice.begin_ns);
    last = slice.begin_ns;
  }
  std::stable_sort(slices->begin(), slices->end(),
                   [](const TimedSlice& a, const TimedSlice& b) { return a.begin_ns < b.begin_ns; });
  std::vector<std::vector<int64_t>> open;  // by lane: the ends of the open slices, the outermost first
  std::vector<int> lanes;
  for (TimedSlice& slice : *slices) {
    size_t lane = 0;
    for (;; ++lane) {
      if (lane == open.size()) open.emplace_back();
      std::vector<int64_t>& ends = open[lane];
      while (!ends.empty() && ends.back() <= slice.begin_ns) ends.pop_back();
      if (ends.empty()) break;
      if (slice.end_ns <= ends.back() + kClockErrorNs && nests) {
        slice.end_ns = std::min(slice.end_ns, ends.back());
        break;
      }
    }
    open[lane].push_back(slice.end_ns);
    lanes.push_back(static_cast<int>(lane));
  }
  return lanes;
}

TraceFile::TraceFile(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);  // a pipe with a reader in another process
  if (fd_ < 0) storage_error(path_, "cannot be opened for writing");
  struct stat info = {};
  regular_ = ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular_) return;
  try {
    std::array<char, kHead.size()> head;
    const ssize_t got = ::pread(fd_, head.data(), head.size(), 0);
    if (got < 0) storage_error(path_, "cannot be read");
    if (got > 0 && std::string_view(head.data(), static_cast<size_t>(got)) != kHead) {
      throw_error(ExitCode::kBadInput, path_, "is not a trace of this program",
                  "It is unchanged; give --trace another file");
    }
    write_text(str(kHead, kEmpty));
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

TraceFile::~TraceFile() { ::close(fd_); }

void TraceFile::write_text(std::string_view text) {
  if (regular_ && (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0)) {
    storage_error(path_, "cannot be emptied");
  }
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd_, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) storage_error(path_, "cannot be written");
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

void TraceFile::write(const std::vector<TimedSlice>& slices, const TraceSummary& summary, const std::string& device) {
  std::string text = str(kHead, "\n");
  for (size_t track = 0; track < kTraceTracks; ++track) text += track_events(static_cast<TraceTrack>(track), slices);
  text += dropped_event(summary, slices);
  text += metadata("process_name", 0, {{"name", "headrace, " + device}});
  text.resize(text.size() - 2);  // no comma follows the last event
  text += str("\n],\"otherData\":", other_data(summary), "}\n");
  try {
    write_text(text);
  } catch (...) {
    try {
      if (regular_) write_text(str(kHead, kEmpty));
    } catch (...) {  // report the first error
    }
    throw;
  }
}

}  // namespace headrace
