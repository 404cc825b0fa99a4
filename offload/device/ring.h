// A ring of staging slots on the device (docs/design.md, section 8, Streaming): the copy stream fills the next slot
// while the compute stream works on the last one. Its size in bytes is fixed and independent of the context. Fills are
// numbered 0, 1, 2, … and fill n uses slot n % slots. Call order: fill(n) only after release(n - slots); acquire(n)
// after fill(n); release(n) after acquire(n); each in ascending order, CHECKed. One thread may fill and another acquire
// and release, if they keep that order between them; reset() only while neither calls. Owns the slots' memory and
// events; streams that use them must be idle or destroyed before the ring is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/device/buffer.h"
#include "offload/device/device.h"
#include "offload/device/stream.h"

namespace headrace {

class StagingRing {
 public:
  StagingRing(Device& device, int slots, uint64_t slot_bytes);

  // Enqueues on `copy`: wait until the slot's previous use is released, copy `bytes` from pinned memory, mark the slot
  // ready.
  void fill(uint64_t number, const void* src, uint64_t bytes, Stream& copy, TraceName what = {});
  // The same of several parts of the slot.
  struct Part {
    uint64_t offset;
    const void* src;
    CopyPieces pieces;
  };
  void fill(uint64_t number, std::span<const Part> parts, Stream& copy, TraceName what = {});
  // Makes `compute` wait for fill `number`; returns the address of its bytes.
  const std::byte* acquire(uint64_t number, Stream& compute);
  // No later work on `compute` reads the slot.
  void release(uint64_t number, Stream& compute);
  // Forgets fills in flight: blocks until `copy` has finished them. Numbering restarts at 0. REQUIRES: all acquired
  // slots are released. Later fills still wait for their last readers.
  void reset(Stream& copy);

  int slots() const { return static_cast<int>(slots_.size()); }
  uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  std::byte* slot_data(uint64_t number) const;

  struct Slot {
    std::unique_ptr<Event> ready, released;
  };
  uint64_t slot_bytes_;
  DeviceBuffer memory_;
  std::vector<Slot> slots_;
  std::atomic<uint64_t> filled_{0}, acquired_{0}, released_{0};  // calls with lower numbers have been made
};

}  // namespace headrace
