// What the int8 copy of the rows (runtime/kv/row_copy.h) lacks of the bf16 rows in host memory: a code a value and a
// short list (kernels/rows/op.h). With both the device makes the exact rows, so that a refresh streams fewer bytes
// (docs/design.md, section 8). The rows themselves stay in host memory, too: for segments without remainders, saved
// prefixes and later runs.
//
// Owns the pinned memory and the device memory to work in. Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/memory_plan.h"
#include "cache/stream_schedule.h"
#include "kernels/segment.h"
#include "offload/device/background_pinned_buffer.h"
#include "offload/device/device.h"

namespace headrace {

class RowRemainders {
 public:
  // Starts a thread that pins the plan's host memory, in pieces of whole layers of about `piece_bytes`. REQUIRES: the
  // plan has remainder_segments.
  RowRemainders(Device& device, const RowShape& shape, const MemoryPlan& plan, uint64_t piece_bytes);
  static uint64_t pinned_bytes(const MemoryPlan& plan) { return plan.remainder_bytes + plan.remainder_lengths_bytes; }

  // Whether the segment may have remainders and has not been encoded.
  bool wants(int64_t layer, int64_t index) const;
  // Enqueues on `out`, one stream for all calls, what is made of a full segment: its exact rows and its int8 ones.
  // Blocks until its host memory is pinned. If that fails, this segment and all later ones have no remainders: rows can
  // be streamed instead.
  void encode(int64_t layer, int64_t index, const KvSegment& exact, const KvSegment& rows, Stream& out);
  // After the last encode(); has() is valid once `out` has run.
  void finish_encoding(Stream& out);
  // While they are not usable, has() is false: rows are streamed whole.
  void set_usable(bool usable) { usable_ = usable; }
  const BackgroundPinnedBuffer& host_memory() const { return memory_; }
  // The rows of segments [index, …) change.
  void drop_from(int64_t index);

  // Whether the segment can be made of these remainders. False too if its pieces had no room.
  bool has(int64_t layer, int64_t index) const;
  std::span<const std::byte> of(int64_t layer, int64_t index);  // REQUIRES: has()
  // Makes the exact rows of those segments of a chunk that have remainders. `slot`: where they are, each where its rows
  // would be. `rows`: the layer's int8 segments. Returns where the exact rows will be, in the same places, until the
  // next call.
  const std::byte* decode(int64_t layer, const Chunk& chunk, const std::byte* slot, std::span<const KvSegment> rows,
                          Stream& compute) const;

 private:
  size_t place(int64_t layer, int64_t index) const { return static_cast<size_t>(layer * segments_ + index); }
  uint64_t offset(int64_t layer, int64_t index) const;

  const RowShape shape_;
  const int64_t segments_, first_, end_;  // of a layer; those of [first_, end_) may have remainders
  const uint64_t layer_bytes_;
  BackgroundPinnedBuffer memory_;
  DeviceBuffer work_, lengths_;  // lengths_: [layers, segments] of uint32_t
  PinnedBuffer host_lengths_;    // the same; the last one stays 0
  std::vector<bool> encoded_;
  bool lacks_memory_ = false;  // some could not be pinned
  bool usable_ = true;
};

}  // namespace headrace
