// Measures a device's link: pinned copies to the device, back, and both at once; scattered pages; pageable memory;
// copies within the device; and the latency of the smallest copy. The copies of a round are all enqueued behind a copy
// that holds them back, so launches are not measured, except where launches are the cost. Times come from the device,
// by its trace clock. The received data is compared with what was sent. One body for both backends. Thread: one.
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

// How scattered pages are transferred to the device (offload/measure/scatter.h): one copy call each, one strided copy,
// or a kernel.
enum class ScatterWay : uint8_t { kCalls, kStrided, kKernel };
constexpr std::array<ScatterWay, 3> kScatterWays = {ScatterWay::kCalls, ScatterWay::kStrided, ScatterWay::kKernel};
const char* scatter_way_name(ScatterWay way);  // "copy calls", "one strided copy", "a gather kernel"

struct LinkPeak {
  LinkUse use = LinkUse::kToDevice;
  uint64_t copy_bytes = 0;                        // of one copy or page
  int copies = 0, rounds = 0;                     // copies a round, each way; timed rounds
  double gb_per_s = 0, slowest = 0, fastest = 0;  // median round and extremes; kBoth: both directions together
};

// Owns two buffers of `buffer_bytes` in each memory, and the streams.
class LinkMeter {
 public:
  LinkMeter(Device& device, uint64_t buffer_bytes);

  // Copies `copy_bytes` at a time through the whole buffers, repeatedly, until `round_bytes` (or kMaxCopies) have been
  // copied. Times `rounds` such rounds after one warm-up. Throws Error(kInternal) if the received data differs.
  // REQUIRES: 0 < copy_bytes <= buffer_bytes.
  LinkPeak measure(LinkUse use, uint64_t copy_bytes, uint64_t round_bytes, int rounds = 5);

  // As many pages as `round_bytes` holds, every other page of the host's buffer; the cost of the calls counts.
  // REQUIRES: page_bytes is a multiple of 16; the buffer holds twice round_bytes.
  LinkPeak measure_scattered(ScatterWay way, uint64_t page_bytes, uint64_t round_bytes, int rounds = 5);
  // Copies of unpinned memory, timed by the host's clock from call to completion. kBoth: two threads.
  LinkPeak measure_pageable(LinkUse use, uint64_t copy_bytes, uint64_t round_bytes, int rounds = 5);
  // Within the device. Bytes copied, each of which is read and written.
  LinkPeak measure_within(uint64_t copy_bytes, uint64_t round_bytes, int rounds = 5);
  // From call to completion as the host sees it: microseconds, the median of `times` copies of eight bytes.
  double latency_us(LinkUse direction, int times = 200);

  static constexpr int kMaxCopies = 128;  // a CPU stream's queue holds these and the end of the round

 private:
  struct Lane {  // one direction
    std::unique_ptr<Stream> stream;
    DeviceBuffer device;
    PinnedBuffer host;
    uint64_t sent = 0;  // the pattern in the source
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
