// The tier of each segment of a layer (docs/design.md, section 2): the first segments on the device, the rest in host
// memory and on disk. Disk units are spread evenly among the others, so disk and link are both busy throughout a layer.
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
  // Segments [0, resident) of `segments` are on the device. The others are cut into units() of whole segments, each of
  // at most `unit_bytes` or one segment; `disk_units` of them are on disk.
  SegmentPlacement(const RowShape& shape, int64_t segments, int64_t resident, uint64_t unit_bytes, int64_t disk_units);

  int64_t segments() const { return static_cast<int64_t>(tiers_.size()); }
  int64_t resident() const { return resident_; }
  int64_t units() const { return units_; }
  Tier tier(int64_t segment) const { return tiers_[static_cast<size_t>(segment)]; }
  // From the layer's first segment of the same tier. Segments of a tier are contiguous, in order of position.
  uint64_t offset_bytes(int64_t segment) const { return offsets_[static_cast<size_t>(segment)]; }
  uint64_t resident_bytes() const { return bytes_[static_cast<size_t>(Tier::kVram)]; }  // of one layer
  uint64_t host_bytes() const { return bytes_[static_cast<size_t>(Tier::kHost)]; }
  uint64_t disk_bytes() const { return bytes_[static_cast<size_t>(Tier::kDisk)]; }
  int64_t disk_segments() const;
  uint64_t largest_unit_bytes() const { return largest_unit_bytes_; }  // of a disk unit

 private:
  int64_t resident_ = 0, units_ = 0;
  uint64_t largest_unit_bytes_ = 0;
  uint64_t bytes_[3] = {};
  std::vector<Tier> tiers_;
  std::vector<uint64_t> offsets_;
};

}  // namespace headrace
