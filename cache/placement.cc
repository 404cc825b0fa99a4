#include "cache/placement.h"

#include <algorithm>

namespace headrace {
namespace {

// The end of the unit of segments that begins at `first`.
int64_t unit_end(const RowShape& shape, int64_t first, int64_t segments, uint64_t unit_bytes) {
  int64_t last = first + 1;
  while (last < segments && segments_bytes(shape, first, last + 1) <= unit_bytes) ++last;
  return last;
}

}  // namespace

const char* tier_name(Tier tier) { return tier == Tier::kVram ? "vram" : tier == Tier::kHost ? "host" : "disk"; }

SegmentPlacement::SegmentPlacement(const RowShape& shape, int64_t segments, int64_t resident, uint64_t unit_bytes,
                                   int64_t disk_units)
    : resident_(std::min(resident, segments)), tiers_(static_cast<size_t>(segments), Tier::kVram) {
  for (int64_t first = resident_; first < segments; first = unit_end(shape, first, segments, unit_bytes)) ++units_;
  CHECK(disk_units >= 0 && disk_units <= units_, disk_units, " of ", units_);
  int64_t unit = 0;
  for (int64_t first = resident_; first < segments; ++unit) {
    const int64_t last = unit_end(shape, first, segments, unit_bytes);
    const bool on_disk = (unit + 1) * disk_units / units_ > unit * disk_units / units_;
    std::fill(tiers_.begin() + first, tiers_.begin() + last, on_disk ? Tier::kDisk : Tier::kHost);
    if (on_disk) largest_unit_bytes_ = std::max(largest_unit_bytes_, segments_bytes(shape, first, last));
    first = last;
  }
  offsets_.reserve(tiers_.size());
  for (int64_t i = 0; i < segments; ++i) {
    uint64_t& end = bytes_[static_cast<size_t>(tier(i))];
    offsets_.push_back(end);
    end += segments_bytes(shape, i, i + 1);
  }
}

int64_t SegmentPlacement::disk_segments() const { return std::count(tiers_.begin(), tiers_.end(), Tier::kDisk); }

}  // namespace headrace
