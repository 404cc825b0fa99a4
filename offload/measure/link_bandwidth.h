// Measures a device's link: pinned copies to the device, back, and both at once; scattered pages; pageable memory;
// copies within the device; and the latency of the smallest copy. The copies of a round are all enqueued behind a copy
// that holds them back, so that no launch is measured, but where it is the launches that cost; the time is the device's
// own, by the clock of its traces; and what arrived is compared with what was sent. One body for both backends. Thread:
// one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "offload/device/device.h"
#include "offload/device/trace_clock.h"

namespace headrace {

enum class LinkUse : uint8_t { kToDevice, kToHost, kBoth };
constexpr std::array<LinkUse, 3> kLinkUses = {LinkUse::kToDevice, LinkUse::kToHost, LinkUse::kBoth};
const char* link_use_name(LinkUse use);  // "to_device", "to_host", "both"

// How pages that lie apart come to the device (offload/measure/scatter.h): a copy call each, one copy of equal strides,
// a kernel.
enum class ScatterWay : uint8_t { kCalls, kStrided, kKernel };
constexpr std::array<ScatterWay, 3> kScatterWays = {ScatterWay::kCalls, ScatterWay::kStrided, ScatterWay::kKernel};
const char* scatter_way_name(ScatterWay way);  // "copy calls", "one strided copy", "a gather kernel"

struct LinkPeak {
  LinkUse use = LinkUse::kToDevice;
  uint64_t copy_bytes = 0;                        // of one copy, or of a page
  int copies = 0, rounds = 0;                     // copies a round, each way; timed rounds
  double gb_per_s = 0, slowest = 0, fastest = 0;  // the median round and the outer two; both ways together for kBoth
};

// Owns two buffers of `buffer_bytes` in each memory, and the streams.
class LinkMeter {
 public:
  LinkMeter(Device& device, uint64_t buffer_bytes);

  // Copies of `copy_bytes` through the whole buffers, and again until `round_bytes` (or kMaxCopies) have been copied;
  // `rounds` of these are timed, after one that is not. Throws Error(kInternal) if what arrives is not what was sent.
  // REQUIRES: 0 < copy_bytes <= buffer_bytes.
  LinkPeak measure(LinkUse use, uint64_t copy_bytes, uint64_t round_bytes, int rounds = 5);

  // As many pages as make `round_bytes`, every other one of the host's buffer; the calls' own cost counts.
  // REQUIRES: page_bytes is a multiple of 16; the buffer holds twice round_bytes.
  LinkPeak measure_scattered(ScatterWay way, uint64_t page_bytes, uint64_t round_bytes, int rounds = 5);
  // Copies of memory that is not pinned, by the host's clock: each call and its end. kBoth: two threads.
  LinkPeak measure_pageable(LinkUse use, uint64_t copy_bytes, uint64_t round_bytes, int rounds = 5);
  // Within the device; bytes copied, which are read and written.
  LinkPeak measure_within(uint64_t copy_bytes, uint64_t round_bytes, int rounds = 5);
  // From the call to its end, as the host sees it; microseconds, the median of `times` copies of eight bytes.
  double latency_us(LinkUse direction, int times = 200);

  static constexpr int kMaxCopies = 128;  // a CPU stream's queue holds as many, and the end of the round

 private:
  struct Lane {  // one direction
    std::unique_ptr<Stream> stream;
    DeviceBuffer device;
    PinnedBuffer host;
    uint64_t sent = 0;  // the pattern that the source holds
  };
  Lane make_lane(const char* name);
  // Enqueues one direction's copies of a round, between the stamps.
  using Enqueue = std::function<void(Lane& lane, LinkUse direction)>;
  std::vector<double> timed_rounds(LinkUse use, int rounds, const Enqueue& enqueue);
  double round_seconds(LinkUse use, const Enqueue& enqueue);
  double free_round_seconds(const Enqueue& enqueue);
  double seconds_of(LinkUse use) const;
  void stamped(LinkUse direction, const Enqueue& enqueue);
  void prepare(uint64_t bytes);
  void verify(LinkUse direction, uint64_t bytes);
  void verify_pages(uint64_t page_bytes, uint64_t pages);
  void expect(uint64_t wrong_at, uint64_t bytes, LinkUse direction) const;
  uint64_t gate_bytes() const;

  Device& device_;
  const uint64_t buffer_bytes_;
  uint64_t pattern_ = 0;
  int gate_copies_ = 1;
  const std::unique_ptr<TraceClock> clock_;
  const std::unique_ptr<Event> opened_;
  TraceSlice in_slice_, out_slice_;  // from a round's first copy to its last
  Lane in_, out_;                    // to the device; to the host
  const std::unique_ptr<Stream> gate_;
};

}  // namespace headrace
