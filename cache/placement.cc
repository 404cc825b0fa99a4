#include "cache/placement.h"

#include <algorithm>

namespace headrace {
namespace {

// The bytes of each segment of one shape: a search of plans asks for them a million times.
class SegmentBytes {
 public:
  explicit SegmentBytes(const RowShape& shape)
      : small_(segments_bytes(shape, 0, 1)), large_(segments_bytes(shape, kSmallSegments, kSmallSegments + 1)) {}
  uint64_t operator()(int64_t segment) const { return segment < kSmallSegments ? small_ : large_; }

 private:
  uint64_t small_, large_;
};

// Segments from `first` on.
struct Unit {
  int64_t last;  // the segment behind them
  uint64_t bytes;
};
Unit unit_at(const SegmentBytes& bytes, int64_t first, int64_t segments, uint64_t unit_bytes) {
  Unit unit{first + 1, bytes(first)};
  for (; unit.last < segments && unit.bytes + bytes(unit.last) <= unit_bytes; ++unit.last) {
    unit.bytes += bytes(unit.last);
  }
  return unit;
}

}  // namespace

const char* tier_name(Tier tier) { return tier == Tier::kVram ? "vram" : tier == Tier::kHost ? "host" : "disk"; }

SegmentPlacement::SegmentPlacement(const RowShape& shape, int64_t segments, int64_t resident, uint64_t unit_bytes,
                                   int64_t disk_units)
    : resident_(std::min(resident, segments)), tiers_(static_cast<size_t>(segments), Tier::kVram) {
  const SegmentBytes bytes(shape);
  for (int64_t first = resident_; first < segments; first = unit_at(bytes, first, segments, unit_bytes).last) ++units_;
  CHECK(disk_units >= 0 && disk_units <= units_, disk_units, " of ", units_);
  int64_t unit = 0;
  for (int64_t first = resident_; first < segments; ++unit) {
    const auto [last, size] = unit_at(bytes, first, segments, unit_bytes);
    const bool on_disk = (unit + 1) * disk_units / units_ > unit * disk_units / units_;
    std::fill(tiers_.begin() + first, tiers_.begin() + last, on_disk ? Tier::kDisk : Tier::kHost);
    if (on_disk) largest_unit_bytes_ = std::max(largest_unit_bytes_, size);
    first = last;
  }
  offsets_.reserve(tiers_.size());
  for (int64_t i = 0; i < segments; ++i) {
    uint64_t& end = bytes_[static_cast<size_t>(tier(i))];
    offsets_.push_back(end);
    end += bytes(i);
  }
}

int64_t SegmentPlacement::disk_segments() const { return std::count(tiers_.begin(), tiers_.end(), Tier::kDisk); }

}  // namespace headrace
