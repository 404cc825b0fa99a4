#include "offload/device/ring.h"

#include "cache/base.h"

namespace headrace {
namespace {

// Slots begin at multiples of this, so that kernels can load whole vectors.
constexpr uint64_t kSlotAlign = 256;

uint64_t ring_bytes(int slots, uint64_t slot_bytes) {
  CHECK(slots >= 1 && slot_bytes >= 1, "slots=", slots, " slot_bytes=", slot_bytes);
  uint64_t bytes = 0;
  CHECK(slot_bytes <= UINT64_MAX - kSlotAlign &&
            checked_mul(round_up(slot_bytes, kSlotAlign), static_cast<uint64_t>(slots), &bytes),
        "slots=", slots, " slot_bytes=", slot_bytes);
  return bytes;
}

}  // namespace

StagingRing::StagingRing(Device& device, int slots, uint64_t slot_bytes)
    : slot_bytes_(slot_bytes), memory_(device.allocate(ring_bytes(slots, slot_bytes), "the staging ring")) {
  slots_.reserve(static_cast<size_t>(slots));
  for (int i = 0; i < slots; ++i) slots_.push_back({device.make_event(), device.make_event()});
}

std::byte* StagingRing::slot_data(uint64_t number) const {
  return memory_.data() + number % slots_.size() * round_up(slot_bytes_, kSlotAlign);
}

void StagingRing::fill(uint64_t number, const void* src, uint64_t bytes, Stream& copy, TraceName what) {
  const Part part{.offset = 0, .src = src, .pieces = {.bytes = bytes}};
  fill(number, std::span(&part, 1), copy, what);
}

void StagingRing::fill(uint64_t number, std::span<const Part> parts, Stream& copy, TraceName what) {
  CHECK(number == filled_, "fill ", number, " where ", filled_.load(), " is next");
  CHECK(filled_ - released_ < slots_.size(), "fill ", number, ": all ", slots_.size(), " slots are taken, ",
        released_.load(), " is to be released next");
  Slot& slot = slots_[number % slots_.size()];
  copy.wait(*slot.released);
  for (const Part& part : parts) {
    const CopyPieces& pieces = part.pieces;
    const uint64_t bytes = (pieces.count - 1) * pieces.dst_stride + pieces.bytes;
    CHECK(bytes <= slot_bytes_ && part.offset <= slot_bytes_ - bytes, "offset=", part.offset, " bytes=", bytes,
          " slot_bytes=", slot_bytes_);
    copy.copy_pieces(slot_data(number) + part.offset, part.src, pieces, Link::kHostToDevice, what);
  }
  copy.record(*slot.ready);
  ++filled_;
}

const std::byte* StagingRing::acquire(uint64_t number, Stream& compute) {
  CHECK(number == acquired_ && number < filled_, "acquire ", number, " where ", acquired_.load(), " is next and ",
        filled_.load(), " are filled");
  compute.wait(*slots_[number % slots_.size()].ready);
  ++acquired_;
  return slot_data(number);
}

void StagingRing::release(uint64_t number, Stream& compute) {
  CHECK(number == released_ && number < acquired_, "release ", number, " where ", released_.load(), " is next and ",
        acquired_.load(), " are acquired");
  compute.record(*slots_[number % slots_.size()].released);
  ++released_;
}

void StagingRing::reset(Stream& copy) {
  CHECK(released_ == acquired_, "reset while fill ", released_.load(), " is acquired and not released");
  filled_ = 0;
  acquired_ = 0;
  released_ = 0;
  copy.synchronize();
}

}  // namespace headrace
