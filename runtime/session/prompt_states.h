// The states of a prompt on their way through the layers: prefill's residual stream. They are on the device, or, where
// the plan has no room for them (MemoryPlan::host_states_bytes), in pinned host memory, like rows that are streamed. A
// few groups of rows are then on the device: the next ones arrive on a stream of their own while this one is computed,
// and those before it leave on another. Owns the host memory and the streams; the slots are prefill's. Thread: the
// session's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "offload/device/device.h"
#include "runtime/session/layout.h"

namespace headrace {

class HostStates {
 public:
  // `slots`: device memory of kStateSlots groups of prefill. `groups`: of a layer. Both must outlive this, and so must
  // the device.
  HostStates(const SessionLayout& layout, std::byte* slots, int64_t groups);

  // Of the prompt's computed rows: complete for `compute` once it waits for finish(). A GPU's kernels read it, too.
  std::byte* all() { return memory_.data(); }
  // The slot of the next group, in order of layers and rows. `compute` waits until the group's states are there; in the
  // first layer until others have left the slot.
  std::byte* next(Stream& compute);
  // The states in that slot are those at the next layer's input: `bytes`, whose place is `offset` bytes into all().
  void done(uint64_t offset, uint64_t bytes, Stream& compute);
  // `compute` waits until all states have left.
  void finish(Stream& compute);

 private:
  struct Place {
    uint64_t offset, bytes;
  };
  std::byte* slot(int64_t number) const { return slots_ + static_cast<uint64_t>(number % kStateSlots) * slot_bytes_; }

  const int64_t groups_, layers_, ahead_;
  const uint64_t slot_bytes_;
  std::byte* const slots_;
  PinnedBuffer memory_;
  std::vector<Place> places_;  // of a layer's groups, as they were first computed
  std::array<std::unique_ptr<Event>, kStateSlots> computed_, left_, arrived_;
  int64_t number_ = 0;                // of the group that is next
  std::unique_ptr<Stream> in_, out_;  // last: they finish before the memory goes
};

}  // namespace headrace
