#include "offload/device/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

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

// Bytes that are not UTF-8 (in a file name) become U+FFFD.
std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Buffered writes to a file.
class Writer {
 public:
  Writer(int fd, const std::string& path) : fd_(fd), path_(path) {}

  void put(std::string_view text) {
    text_ += text;
    if (text_.size() >= kBlock) flush();
  }
  void flush() {
    for (size_t done = 0; done < text_.size();) {
      const ssize_t wrote = ::write(fd_, text_.data() + done, text_.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) storage_error(path_, "cannot be written");
      done += static_cast<size_t>(wrote);
    }
    text_.clear();
  }

 private:
  static constexpr size_t kBlock = 1 << 18;
  const int fd_;
  const std::string& path_;
  std::string text_;
};

std::string microseconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%s%lld.%03d", ns < 0 ? "-" : "", static_cast<long long>(std::abs(ns) / 1000),
                static_cast<int>(std::abs(ns) % 1000));
  return text;
}

std::string metadata(const char* what, int tid, const std::string& args) {
  return str("\n{\"ph\":\"M\",\"pid\":1,\"tid\":", tid, ",\"name\":\"", what, "\",\"args\":{", args, "}},");
}

// The number of a lane in the file, which also orders it in the viewer.
int lane_tid(TraceTrack track, int lane) { return static_cast<int>(track) * 100 + lane + 1; }

std::string slice_event(const TimedSlice& slice, int tid) {
  const std::string name = slice.name.number < 0 ? slice.name.text : str(slice.name.text, " ", slice.name.number);
  const int64_t ns = slice.end_ns - slice.begin_ns;
  std::string args;
  if (slice.bytes > 0) {
    char rate[32] = "0";
    if (ns > 0) std::snprintf(rate, sizeof rate, "%.3f", static_cast<double>(slice.bytes) / static_cast<double>(ns));
    const char* const link = slice.track == TraceTrack::kDisk ? "disk" : kLinkNames[static_cast<size_t>(slice.link)];
    args = str("\"link\":\"", link, "\",\"bytes\":", slice.bytes, ",\"GB/s\":", rate);
  }
  return str("\n{\"ph\":\"X\",\"pid\":1,\"tid\":", tid, ",\"ts\":", microseconds(slice.begin_ns),
             ",\"dur\":", microseconds(ns), ",\"name\":", json_string(name), ",\"args\":{", args, "}},");
}

void put_track(TraceTrack track, std::vector<TimedSlice> slices, Writer* out) {
  if (slices.empty()) return;
  const std::vector<int> lanes = trace_lanes(&slices);
  const int count = *std::max_element(lanes.begin(), lanes.end()) + 1;
  for (int lane = 0; lane < count; ++lane) {
    const std::string name = kTrackNames[static_cast<size_t>(track)];
    const int tid = lane_tid(track, lane);
    out->put(metadata("thread_name", tid, str("\"name\":\"", lane == 0 ? name : str(name, " ", lane + 1), "\"")));
    out->put(metadata("thread_sort_index", tid, str("\"sort_index\":", tid)));
  }
  for (size_t i = 0; i < slices.size(); ++i) out->put(slice_event(slices[i], lane_tid(track, lanes[i])));
}

// A note about dropped slices, at the end of the trace.
void put_dropped(const TraceSummary& summary, int64_t end_ns, Writer* out) {
  if (summary.dropped_steps == 0 && summary.dropped_slices == 0) return;
  out->put(str("\n{\"ph\":\"i\",\"s\":\"g\",\"pid\":1,\"tid\":1,\"ts\":", microseconds(end_ns),
               ",\"name\":\"not recorded: ", summary.dropped_steps, " decode steps, ", summary.dropped_slices,
               " slices\",\"args\":{}},"));
}

std::string other_data(const TraceSummary& summary) {
  const nlohmann::ordered_json data = {
      {"slices", summary.slices},           {"dropped_slices", summary.dropped_slices},
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
    write_empty();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

TraceFile::~TraceFile() { ::close(fd_); }

void TraceFile::write_empty() {
  if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) storage_error(path_, "cannot be emptied");
  Writer out(fd_, path_);
  out.put(kHead);
  out.put(kEmpty);
  out.flush();
}

void TraceFile::write(std::vector<TimedSlice> slices, const TraceSummary& summary, const std::string& device) {
  if (regular_ && (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0)) {
    storage_error(path_, "cannot be emptied");
  }
  try {
    Writer out(fd_, path_);
    out.put(kHead);
    int64_t end_ns = 0;
    for (const TimedSlice& slice : slices) end_ns = std::max(end_ns, slice.end_ns);
    for (size_t track = 0; track < kTraceTracks; ++track) {
      std::vector<TimedSlice> own;
      std::copy_if(slices.begin(), slices.end(), std::back_inserter(own),
                   [&](const TimedSlice& slice) { return static_cast<size_t>(slice.track) == track; });
      put_track(static_cast<TraceTrack>(track), std::move(own), &out);
    }
    put_dropped(summary, end_ns, &out);
    // Last, because no comma follows it.
    out.put(str("\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":",
                json_string("headrace, " + device), "}}\n],\"otherData\":", other_data(summary), "}\n"));
    out.flush();
  } catch (...) {
    if (regular_) {
      try {
        write_empty();
      } catch (...) {  // report the first error
      }
    }
    throw;
  }
}

}  // namespace headrace
