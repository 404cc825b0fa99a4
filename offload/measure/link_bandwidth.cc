#include "offload/measure/link_bandwidth.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "cache/base.h"
#include "offload/host/clock.h"
#include "offload/host/pages.h"
#include "offload/host/start_thread.h"
#include "offload/measure/scatter.h"

namespace headrace {
namespace {

constexpr int kMaxGateCopies = 4096;
constexpr uint64_t kMaxGateBytes = 64 * kMiB;  // of one of the gate's copies

// Word i of a pattern: words differ within a buffer, and each position differs between patterns.
constexpr uint64_t pattern_word(uint64_t pattern, uint64_t i) {
  return (i + 1) * 0x9E3779B97F4A7C15u ^ pattern * 0xD1B54A32D192ED03u;
}

void fill(uint64_t pattern, uint64_t* words, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes / 8; ++i) words[i] = pattern_word(pattern, i);
}

// The offset of the first byte that differs from the pattern, from word `first` on, or `bytes`.
uint64_t matching_bytes(uint64_t pattern, const uint64_t* words, uint64_t bytes, uint64_t first = 0) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < bytes / 8; ++i) wrong |= words[i] ^ pattern_word(pattern, first + i);
  if (wrong == 0) return bytes;
  uint64_t i = 0;
  while (words[i] == pattern_word(pattern, first + i)) ++i;
  return i * 8;
}

LinkPeak summary(LinkUse use, uint64_t copy_bytes, int copies, double bytes, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto rate = [&](double s) { return bytes / s * 1e-9; };
  return {.use = use,
          .copy_bytes = copy_bytes,
          .copies = copies,
          .rounds = static_cast<int>(seconds.size()),
          .gb_per_s = rate(seconds[(seconds.size() - 1) / 2]),
          .slowest = rate(seconds.back()),
          .fastest = rate(seconds.front())};
}

int copies_of(uint64_t round_bytes, uint64_t copy_bytes) {
  return static_cast<int>(std::clamp<uint64_t>(round_bytes / copy_bytes, 1, LinkMeter::kMaxCopies));
}

void copy_one(Stream& stream, LinkUse direction, void* device, void* host, uint64_t bytes) {
  const bool in = direction == LinkUse::kToDevice;
  stream.copy(in ? device : host, in ? host : device, bytes, in ? Link::kHostToDevice : Link::kDeviceToHost);
}

// Both directions at once. If one fails, the other finishes.
template <typename Send>
void send_both(const Send& send) {
  std::exception_ptr error;
  std::thread other = start_thread("the thread that copies to the host to measure the link", [&] {
    try {
      send(LinkUse::kToHost);
    } catch (...) {
      error = std::current_exception();
    }
  });
  try {
    send(LinkUse::kToDevice);
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace

const char* link_use_name(LinkUse use) {
  constexpr const char* kNames[] = {"to_device", "to_host", "both"};
  return kNames[static_cast<size_t>(use)];
}

const char* scatter_way_name(ScatterWay way) {
  constexpr const char* kNames[] = {"copy calls", "one strided copy", "a gather kernel"};
  return kNames[static_cast<size_t>(way)];
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

// Fills each source with a separate pattern and each destination with different content.
void LinkMeter::prepare(uint64_t bytes) {
  out_.sent = ++pattern_;
  fill(out_.sent, out_.host.as<uint64_t>(), bytes);
  gate_->copy(out_.device.data(), out_.host.data(), bytes, Link::kHostToDevice);
  gate_->synchronize();
  std::fill_n(out_.host.data(), bytes, std::byte{0});
  in_.sent = ++pattern_;
  fill(in_.sent, in_.host.as<uint64_t>(), bytes);
}

uint64_t LinkMeter::gate_bytes() const { return std::min(buffer_bytes_, kMaxGateBytes); }

void LinkMeter::stamped(LinkUse direction, const Enqueue& enqueue) {
  const bool in = direction == LinkUse::kToDevice;
  Lane& lane = in ? in_ : out_;
  TraceSlice& slice = in ? in_slice_ : out_slice_;
  clock_->stamp(*lane.stream, slice, TraceEdge::kBegin);
  enqueue(lane, direction);
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

// The gate is a copy of data that is overwritten later. If it finishes before all copies are enqueued, the round does
// not count and the next gate is longer.
double LinkMeter::round_seconds(LinkUse use, const Enqueue& enqueue) {
  for (; gate_copies_ <= kMaxGateCopies; gate_copies_ *= 2) {
    for (int i = 0; i < gate_copies_; ++i) {
      gate_->copy(in_.device.data(), out_.host.data(), gate_bytes(), Link::kHostToDevice);
    }
    gate_->record(*opened_);
    if (use != LinkUse::kToHost) in_.stream->wait(*opened_);
    if (use != LinkUse::kToDevice) out_.stream->wait(*opened_);
    if (use != LinkUse::kToHost) stamped(LinkUse::kToDevice, enqueue);
    if (use != LinkUse::kToDevice) stamped(LinkUse::kToHost, enqueue);
    const bool held = !opened_->done();
    in_.stream->synchronize();
    out_.stream->synchronize();
    clock_->collect();
    if (held) return seconds_of(use);
  }
  throw_error(ExitCode::kInternal, "the link's measurement",
              str("copies were not enqueued while ", kMaxGateCopies, " of ", format_bytes(gate_bytes()), " ran"));
}

// Not held back: the cost of the calls counts.
double LinkMeter::free_round_seconds(const Enqueue& enqueue) {
  stamped(LinkUse::kToDevice, enqueue);
  in_.stream->synchronize();
  clock_->collect();
  return seconds_of(LinkUse::kToDevice);
}

// After one warm-up round.
std::vector<double> LinkMeter::timed_rounds(LinkUse use, int rounds, const Enqueue& enqueue) {
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    const double took = round_seconds(use, enqueue);
    if (round > 0) seconds.push_back(took);
  }
  return seconds;
}

void LinkMeter::expect(uint64_t right, uint64_t bytes, LinkUse direction) const {
  if (right >= bytes) return;
  throw_error(
      ExitCode::kInternal, device_.name(),
      str("a copy ", direction == LinkUse::kToDevice ? "to" : "from", " it went wrong at byte ", right, " of ", bytes),
      "The link or the memory is faulty: do not trust this machine.");
}

void LinkMeter::verify(LinkUse direction, uint64_t bytes) {
  const bool in = direction == LinkUse::kToDevice;
  if (in) {
    gate_->copy(out_.host.data(), in_.device.data(), bytes, Link::kDeviceToHost);
    gate_->synchronize();
  }
  expect(matching_bytes(in ? in_.sent : out_.sent, out_.host.as<uint64_t>(), bytes), bytes, direction);
}

LinkPeak LinkMeter::measure(LinkUse use, uint64_t copy_bytes, uint64_t round_bytes, int rounds) {
  CHECK(copy_bytes > 0 && copy_bytes <= buffer_bytes_ && rounds > 0, "copy_bytes=", copy_bytes, " rounds=", rounds);
  const int copies = copies_of(round_bytes, copy_bytes);
  const uint64_t copied = static_cast<uint64_t>(copies) * copy_bytes;
  const uint64_t places = buffer_bytes_ / copy_bytes, touched = std::min(copied, places * copy_bytes);
  prepare(round_up(touched, 8));
  const auto seconds = timed_rounds(use, rounds, [&](Lane& lane, LinkUse direction) {
    for (int i = 0; i < copies; ++i) {
      const uint64_t at = static_cast<uint64_t>(i) % places * copy_bytes;
      copy_one(*lane.stream, direction, lane.device.data() + at, lane.host.data() + at, copy_bytes);
    }
  });
  if (use != LinkUse::kToDevice) verify(LinkUse::kToHost, touched);  // before the other direction overwrites it
  if (use != LinkUse::kToHost) verify(LinkUse::kToDevice, touched);
  return summary(use, copy_bytes, copies, static_cast<double>(use == LinkUse::kBoth ? 2 * copied : copied), seconds);
}

// Page i on the device is page 2i of the host.
void LinkMeter::verify_pages(uint64_t page_bytes, uint64_t pages) {
  gate_->copy(out_.host.data(), in_.device.data(), pages * page_bytes, Link::kDeviceToHost);
  gate_->synchronize();
  for (uint64_t i = 0; i < pages; ++i) {
    const uint64_t* const words = out_.host.as<uint64_t>() + i * page_bytes / 8;
    expect(i * page_bytes + matching_bytes(in_.sent, words, page_bytes, 2 * i * page_bytes / 8), (i + 1) * page_bytes,
           LinkUse::kToDevice);
  }
}

LinkPeak LinkMeter::measure_scattered(ScatterWay way, uint64_t page_bytes, uint64_t round_bytes, int rounds) {
  const uint64_t pages = std::max<uint64_t>(1, round_bytes / page_bytes), bytes = pages * page_bytes;
  CHECK(page_bytes % 16 == 0 && 2 * bytes <= buffer_bytes_, "page_bytes=", page_bytes, " round_bytes=", round_bytes);
  prepare(2 * bytes);
  const DeviceBuffer places = device_.allocate(pages * sizeof(int32_t), "measuring the link");
  const PinnedBuffer host_places = device_.allocate_pinned(pages * sizeof(int32_t), "measuring the link");
  for (uint64_t i = 0; i < pages; ++i) host_places.as<int32_t>()[i] = static_cast<int32_t>(2 * i);
  gate_->copy(places.data(), host_places.data(), pages * sizeof(int32_t), Link::kHostToDevice);
  gate_->synchronize();
  const Enqueue enqueue = [&](Lane& lane, LinkUse) {
    if (way == ScatterWay::kStrided) {
      copy_rows({lane.device.data(), lane.host.data(), pages, page_bytes, 2 * page_bytes}, *lane.stream);
    } else if (way == ScatterWay::kKernel) {
      gather_pages({lane.device.data(), lane.host.data(), places.as<int32_t>(), pages, page_bytes}, *lane.stream);
    } else {
      for (uint64_t i = 0; i < pages; ++i) {
        lane.stream->copy(lane.device.data() + i * page_bytes, lane.host.data() + 2 * i * page_bytes, page_bytes,
                          Link::kHostToDevice);
      }
    }
  };
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    const double took =
        way == ScatterWay::kCalls ? free_round_seconds(enqueue) : round_seconds(LinkUse::kToDevice, enqueue);
    if (round > 0) seconds.push_back(took);
  }
  verify_pages(page_bytes, pages);
  return summary(LinkUse::kToDevice, page_bytes, static_cast<int>(pages), static_cast<double>(bytes), seconds);
}

LinkPeak LinkMeter::measure_pageable(LinkUse use, uint64_t copy_bytes, uint64_t round_bytes, int rounds) {
  CHECK(copy_bytes > 0 && copy_bytes <= buffer_bytes_ && copy_bytes % 8 == 0, "copy_bytes=", copy_bytes);
  const int copies = copies_of(round_bytes, copy_bytes);
  constexpr const char* kWhat = "to measure the link";
  const MappedPages source(copy_bytes, kWhat), destination(copy_bytes, kWhat);  // unpinned
  prepare(copy_bytes);
  fill(in_.sent, source.as<uint64_t>(), copy_bytes);
  fill(0, destination.as<uint64_t>(), copy_bytes);
  const auto send = [&](LinkUse direction) {
    const bool in = direction == LinkUse::kToDevice;
    Lane& lane = in ? in_ : out_;
    for (int i = 0; i < copies; ++i) {
      copy_one(*lane.stream, direction, lane.device.data(), in ? source.data() : destination.data(), copy_bytes);
      lane.stream->synchronize();
    }
  };
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    const HostClock::time_point start = HostClock::now();
    if (use == LinkUse::kBoth) {
      send_both(send);
    } else {
      send(use);
    }
    if (round > 0) seconds.push_back(seconds_since(start));
  }
  if (use != LinkUse::kToDevice) {
    expect(matching_bytes(out_.sent, destination.as<uint64_t>(), copy_bytes), copy_bytes, LinkUse::kToHost);
  }
  if (use != LinkUse::kToHost) verify(LinkUse::kToDevice, copy_bytes);
  const uint64_t copied = static_cast<uint64_t>(copies) * copy_bytes;
  return summary(use, copy_bytes, copies, static_cast<double>(use == LinkUse::kBoth ? 2 * copied : copied), seconds);
}

LinkPeak LinkMeter::measure_within(uint64_t copy_bytes, uint64_t round_bytes, int rounds) {
  CHECK(copy_bytes > 0 && copy_bytes <= buffer_bytes_ && copy_bytes % 8 == 0, "copy_bytes=", copy_bytes);
  const int copies = copies_of(round_bytes, copy_bytes);
  prepare(copy_bytes);
  const auto seconds = timed_rounds(LinkUse::kToDevice, rounds, [&](Lane& lane, LinkUse) {
    for (int i = 0; i < copies; ++i) {
      lane.stream->copy(lane.device.data(), out_.device.data(), copy_bytes, Link::kWithinDevice);
    }
  });
  in_.sent = out_.sent;
  verify(LinkUse::kToDevice, copy_bytes);
  return summary(LinkUse::kToDevice, copy_bytes, copies, static_cast<double>(copies) * static_cast<double>(copy_bytes),
                 seconds);
}

double LinkMeter::latency_us(LinkUse direction, int times) {
  CHECK(direction != LinkUse::kBoth && times > 0);
  Lane& lane = direction == LinkUse::kToDevice ? in_ : out_;
  std::vector<double> us;
  for (int i = 0; i <= times; ++i) {
    const HostClock::time_point start = HostClock::now();
    copy_one(*lane.stream, direction, lane.device.data(), lane.host.data(), 8);
    lane.stream->synchronize();
    if (i > 0) us.push_back(seconds_since(start) * 1e6);
  }
  std::nth_element(us.begin(), us.begin() + times / 2, us.end());
  return us[static_cast<size_t>(times / 2)];
}

}  // namespace headrace
