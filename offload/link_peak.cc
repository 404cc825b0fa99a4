#include "offload/link_peak.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int kMostGateCopies = 4096;

// Word i of a pattern: no two words of a buffer alike, nor any place in two patterns.
constexpr uint64_t pattern_word(uint64_t pattern, uint64_t i) {
  return (i + 1) * 0x9E3779B97F4A7C15u ^ pattern * 0xD1B54A32D192ED03u;
}

void fill(uint64_t pattern, const PinnedBuffer& buffer) {
  uint64_t* const words = buffer.as<uint64_t>();
  for (uint64_t i = 0; i < buffer.bytes() / 8; ++i) words[i] = pattern_word(pattern, i);
}

// The first byte that is wrong, or `bytes`.
uint64_t matching_bytes(uint64_t pattern, const PinnedBuffer& buffer, uint64_t bytes) {
  const uint64_t* const words = buffer.as<uint64_t>();
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < bytes / 8; ++i) wrong |= words[i] ^ pattern_word(pattern, i);
  if (wrong == 0) return bytes;
  uint64_t i = 0;
  while (words[i] == pattern_word(pattern, i)) ++i;
  return i * 8;
}

}  // namespace

const char* link_use_name(LinkUse use) {
  switch (use) {
    case LinkUse::kToDevice:
      return "to_device";
    case LinkUse::kToHost:
      return "to_host";
    case LinkUse::kBoth:
      return "both";
  }
  return "?";
}

LinkMeter::Lane LinkMeter::make_lane(const char* name) {
  return {.stream = device_.make_stream(name, StreamRole::kCopy),
          .device = device_.allocate(buffer_bytes_, "measuring the link"),
          .host = device_.allocate_pinned(buffer_bytes_, "measuring the link")};
}

LinkMeter::LinkMeter(Device& device, uint64_t buffer_bytes)
    : device_(device),
      buffer_bytes_(buffer_bytes),
      clock_(device.make_trace_clock()),
      opened_(device.make_event()),
      in_(make_lane("link in")),
      out_(make_lane("link out")),
      gate_(device.make_stream("link gate", StreamRole::kCopy)) {
  CHECK(buffer_bytes > 0 && buffer_bytes % 8 == 0, "buffer_bytes=", buffer_bytes);
}

// A pattern of its own for each source, and each destination as it was: neither is what will be sent to it.
void LinkMeter::prepare() {
  out_.sent = ++pattern_;
  fill(out_.sent, out_.host);
  gate_->copy(out_.device.data(), out_.host.data(), buffer_bytes_, Link::kHostToDevice);
  gate_->synchronize();
  std::fill_n(out_.host.data(), buffer_bytes_, std::byte{0});
  in_.sent = ++pattern_;
  fill(in_.sent, in_.host);
}

void LinkMeter::enqueue(LinkUse direction, uint64_t copy_bytes, int copies) {
  const bool in = direction == LinkUse::kToDevice;
  Lane& lane = in ? in_ : out_;
  TraceSlice& slice = in ? in_slice_ : out_slice_;
  const uint64_t places = buffer_bytes_ / copy_bytes;
  lane.stream->wait(*opened_);
  clock_->stamp(*lane.stream, slice, TraceEdge::kBegin);
  for (int i = 0; i < copies; ++i) {
    const uint64_t at = static_cast<uint64_t>(i) % places * copy_bytes;
    std::byte *const device = lane.device.data() + at, *const host = lane.host.data() + at;
    if (in) {
      lane.stream->copy(device, host, copy_bytes, Link::kHostToDevice);
    } else {
      lane.stream->copy(host, device, copy_bytes, Link::kDeviceToHost);
    }
  }
  clock_->stamp(*lane.stream, slice, TraceEdge::kEnd);
}

double LinkMeter::seconds_of(LinkUse use) const {
  int64_t begin = INT64_MAX, end = INT64_MIN;
  for (const auto& [slice, other] : {std::pair{&in_slice_, LinkUse::kToHost}, {&out_slice_, LinkUse::kToDevice}}) {
    if (use == other) continue;
    begin = std::min(begin, slice->begin_ns.load());
    end = std::max(end, slice->end_ns.load());
  }
  CHECK(begin > TraceSlice::kUnknown && end > begin, "begin=", begin, " end=", end);
  return static_cast<double>(end - begin) * 1e-9;
}

// The gate is a copy of what is to be overwritten; if it is through before all is enqueued, the round does not count
// and the next one's gate is longer.
double LinkMeter::round_seconds(LinkUse use, uint64_t copy_bytes, int copies) {
  for (; gate_copies_ <= kMostGateCopies; gate_copies_ *= 2) {
    for (int i = 0; i < gate_copies_; ++i) {
      gate_->copy(in_.device.data(), out_.host.data(), buffer_bytes_, Link::kHostToDevice);
    }
    gate_->record(*opened_);
    if (use != LinkUse::kToHost) enqueue(LinkUse::kToDevice, copy_bytes, copies);
    if (use != LinkUse::kToDevice) enqueue(LinkUse::kToHost, copy_bytes, copies);
    const bool held = !opened_->done();
    in_.stream->synchronize();
    out_.stream->synchronize();
    clock_->collect();
    if (held) return seconds_of(use);
  }
  throw_error(
      ExitCode::kInternal, "the link's measurement",
      str(copies, " copies were not enqueued while ", kMostGateCopies, " of ", format_bytes(buffer_bytes_), " ran"));
}

void LinkMeter::verify(LinkUse direction, uint64_t bytes) {
  const bool in = direction == LinkUse::kToDevice;
  if (in) {
    gate_->copy(out_.host.data(), in_.device.data(), buffer_bytes_, Link::kDeviceToHost);
    gate_->synchronize();
  }
  const uint64_t right = matching_bytes(in ? in_.sent : out_.sent, out_.host, bytes);
  if (right < bytes) {
    throw_error(ExitCode::kInternal, device_.name(),
                str("a copy ", in ? "to" : "from", " it went wrong at byte ", right, " of ", bytes),
                "The link or the memory is faulty: do not trust this machine.");
  }
}

LinkPeak LinkMeter::measure(LinkUse use, uint64_t copy_bytes, uint64_t round_bytes, int rounds) {
  CHECK(copy_bytes > 0 && copy_bytes <= buffer_bytes_ && rounds > 0, "copy_bytes=", copy_bytes, " rounds=", rounds);
  const auto copies = static_cast<int>(std::clamp<uint64_t>(round_bytes / copy_bytes, 1, kMostCopies));
  const uint64_t copied = static_cast<uint64_t>(copies) * copy_bytes;
  prepare();
  std::vector<double> rates;
  for (int round = 0; round <= rounds; ++round) {
    const double seconds = round_seconds(use, copy_bytes, copies);
    const double bytes = static_cast<double>(use == LinkUse::kBoth ? 2 * copied : copied);
    if (round > 0) rates.push_back(bytes / seconds * 1e-9);
  }
  const uint64_t touched = std::min(copied, buffer_bytes_ / copy_bytes * copy_bytes);
  if (use != LinkUse::kToDevice) verify(LinkUse::kToHost, touched);  // before what the other's takes its place
  if (use != LinkUse::kToHost) verify(LinkUse::kToDevice, touched);
  std::sort(rates.begin(), rates.end());
  return {.use = use,
          .copy_bytes = copy_bytes,
          .copies = copies,
          .rounds = rounds,
          .gb_per_s = rates[rates.size() / 2],
          .slowest = rates.front(),
          .fastest = rates.back()};
}

}  // namespace headrace
