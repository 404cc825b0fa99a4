// What a decode step streams: policy as a printable value (docs/design.md, sections 4 and 8). Every layer streams the
// same segments, cut into chunks that fit a slot of the staging ring. A chunk is contiguous in one tier, so one copy
// moves it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/placement.h"

namespace headrace {

struct Chunk {
  int64_t first_segment = 0, last_segment = 0;  // [first, last)
  Tier tier = Tier::kHost;                      // or kDisk
  uint64_t offset_bytes = 0;                    // from the layer's first segment in that tier
  uint64_t bytes = 0;
  bool operator==(const Chunk&) const = default;
};

struct StreamSchedule {
  int64_t layers = 0;
  std::vector<Chunk> chunks;  // of one layer, by position; the same for each layer

  int64_t fills() const { return layers * static_cast<int64_t>(chunks.size()); }
  uint64_t bytes() const;       // over the link, in one step
  uint64_t disk_bytes() const;  // of those, from the disk
  std::string to_string()
      const;  // "stream, in each of 30 layers: segments 4..7 (4.00 MiB), 8..11 (4.00 MiB, disk); 240.00 MiB in all"
  bool operator==(const StreamSchedule&) const = default;
};

// Segments [places.resident(), sealed) of every layer, in chunks of at most slot_bytes; chunks from disk of at most a
// unit. REQUIRES: a slot holds the largest segment.
StreamSchedule plan_stream(const RowShape& shape, const SegmentPlacement& placement, int64_t sealed,
                           uint64_t slot_bytes);

}  // namespace headrace
