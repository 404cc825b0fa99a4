#include "cache/stream_schedule.h"

#include <algorithm>

namespace headrace {

uint64_t StreamSchedule::bytes() const {
  uint64_t sum = 0;
  for (const Chunk& chunk : chunks) sum += chunk.bytes;
  return sum * static_cast<uint64_t>(layers);
}

uint64_t StreamSchedule::disk_bytes() const {
  uint64_t sum = 0;
  for (const Chunk& chunk : chunks) sum += chunk.tier == Tier::kDisk ? chunk.bytes : 0;
  return sum * static_cast<uint64_t>(layers);
}

std::string StreamSchedule::to_string() const {
  if (chunks.empty()) return "nothing is streamed";
  std::string text = str("stream, in each of ", layers, " layers: segments ");
  for (size_t i = 0; i < chunks.size(); ++i) {
    text += str(i == 0 ? "" : ", ", chunks[i].first_segment, "..", chunks[i].last_segment - 1, " (",
                format_bytes(chunks[i].bytes), chunks[i].tier == Tier::kDisk ? ", disk)" : ")");
  }
  return text + "; " + format_bytes(bytes()) + " in all";
}

StreamSchedule plan_stream(const RowShape& shape, const SegmentPlacement& placement, int64_t sealed,
                           uint64_t slot_bytes) {
  StreamSchedule schedule;
  schedule.layers = shape.layers;
  for (int64_t first = placement.resident(); first < sealed;) {
    const Tier tier = placement.tier(first);
    const uint64_t most = tier == Tier::kDisk ? std::min(slot_bytes, placement.largest_unit_bytes()) : slot_bytes;
    int64_t last = first + 1;
    CHECK(segments_bytes(shape, first, last) <= most, "segment ", first, " in a slot of ", most, " bytes");
    while (last < sealed && placement.tier(last) == tier && segments_bytes(shape, first, last + 1) <= most) ++last;
    schedule.chunks.push_back({.first_segment = first,
                               .last_segment = last,
                               .tier = tier,
                               .offset_bytes = placement.offset_bytes(first),
                               .bytes = segments_bytes(shape, first, last)});
    first = last;
  }
  return schedule;
}

}  // namespace headrace
