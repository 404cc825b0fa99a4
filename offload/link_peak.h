// What a device's link gives at best: pinned memory to the device, back, and both at once. The copies of a round are
// all enqueued behind a copy that holds them back, so that no launch is measured; the time is the device's own, by the
// clock of its traces; and what arrived is compared with what was sent. One body for both backends. Thread: one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "offload/device.h"
#include "offload/trace_clock.h"

namespace headrace {

enum class LinkUse : uint8_t { kToDevice, kToHost, kBoth };
constexpr std::array<LinkUse, 3> kLinkUses = {LinkUse::kToDevice, LinkUse::kToHost, LinkUse::kBoth};
const char* link_use_name(LinkUse use);  // "to_device", "to_host", "both"

struct LinkPeak {
  LinkUse use = LinkUse::kToDevice;
  uint64_t copy_bytes = 0;                        // of one copy
  int copies = 0, rounds = 0;                     // copies a round, each way; timed rounds
  double gb_per_s = 0, slowest = 0, fastest = 0;  // the median round and the outer two; both ways together for kBoth
};

// Owns two buffers of `buffer_bytes` in each memory, and the streams.
class LinkMeter {
 public:
  LinkMeter(Device& device, uint64_t buffer_bytes);

  // Copies of `copy_bytes` through the whole buffers, and again until `round_bytes` (or kMostCopies) have been copied;
  // `rounds` of these are timed, after one that is not. Throws Error(kInternal) if what arrives is not what was sent.
  // REQUIRES: 0 < copy_bytes <= buffer_bytes.
  LinkPeak measure(LinkUse use, uint64_t copy_bytes, uint64_t round_bytes, int rounds = 5);

  static constexpr int kMostCopies = 128;  // a CPU stream's queue holds as many, and the end of the round

 private:
  struct Lane {  // one direction
    std::unique_ptr<Stream> stream;
    DeviceBuffer device;
    PinnedBuffer host;
    uint64_t sent = 0;  // the pattern that the source holds
  };
  Lane make_lane(const char* name);
  double round_seconds(LinkUse use, uint64_t copy_bytes, int copies);
  double seconds_of(LinkUse use) const;
  void enqueue(LinkUse direction, uint64_t copy_bytes, int copies);
  void prepare();
  void verify(LinkUse direction, uint64_t bytes);

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
