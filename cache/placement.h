// Where each segment of a layer lives (docs/design.md, section 2, tier): the first ones on the device, the rest in host
// memory or, as evenly between the others as can be, on disk, so that disk and link are both busy throughout a layer.
// The same for every layer that leaves the device. A value; pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/layout.h"

namespace headrace {

enum class Tier : uint8_t { kVram, kHost, kDisk };
const char* tier_name(Tier tier);  // "vram", "host", "disk"

class SegmentPlacement {
 public:
  SegmentPlacement() = default;
  // Segments [0, resident) of `segments` on the device. The others are cut into units() of whole segments, of at most
  // `unit_bytes` or one segment; `disk_units` of them live on disk.
  SegmentPlacement(const RowShape& shape, int64_t segments, int64_t resident, uint64_t unit_bytes, int64_t disk_units);

  int64_t segments() const { return static_cast<int64_t>(tiers_.size()); }
  int64_t resident() const { return resident_; }
  int64_t units() const { return units_; }
  Tier tier(int64_t segment) const { return tiers_[static_cast<size_t>(segment)]; }
  // Among the layer's segments of the same tier, which stand in order of position without gaps.
  uint64_t offset_bytes(int64_t segment) const { return offsets_[static_cast<size_t>(segment)]; }
  uint64_t resident_bytes() const { return bytes_[static_cast<size_t>(Tier::kVram)]; }  // of one layer
  uint64_t host_bytes() const { return bytes_[static_cast<size_t>(Tier::kHost)]; }
  uint64_t disk_bytes() const { return bytes_[static_cast<size_t>(Tier::kDisk)]; }
  int64_t disk_segments() const;
  uint64_t largest_unit_bytes() const { return largest_unit_bytes_; }  // of a unit on disk

 private:
  int64_t resident_ = 0, units_ = 0;
  uint64_t largest_unit_bytes_ = 0;
  uint64_t bytes_[3] = {};
  std::vector<Tier> tiers_;
  std::vector<uint64_t> offsets_;
};

}  // namespace headrace
