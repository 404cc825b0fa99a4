#include "cache/movement.h"

namespace headrace {

uint64_t StepMovement::bytes() const {
  uint64_t sum = 0;
  for (const Chunk& chunk : chunks) sum += chunk.bytes;
  return sum * static_cast<uint64_t>(layers);
}

std::string StepMovement::to_string() const {
  if (chunks.empty()) return "nothing is streamed";
  std::string text = str("stream, in each of ", layers, " layers: segments ");
  for (size_t i = 0; i < chunks.size(); ++i) {
    text += str(i == 0 ? "" : ", ", chunks[i].first_segment, "..", chunks[i].last_segment - 1, " (",
                format_bytes(chunks[i].bytes), ")");
  }
  return text + "; " + format_bytes(bytes()) + " in all";
}

StepMovement plan_movement(const RowShape& shape, int64_t resident, int64_t closed, uint64_t slot_bytes) {
  StepMovement movement;
  movement.layers = shape.layers;
  for (int64_t first = resident; first < closed;) {
    int64_t last = first + 1;
    CHECK(segments_bytes(shape, first, last) <= slot_bytes, "segment ", first, " in a slot of ", slot_bytes, " bytes");
    while (last < closed && segments_bytes(shape, first, last + 1) <= slot_bytes) ++last;
    movement.chunks.push_back(
        {first, last, segments_bytes(shape, resident, first), segments_bytes(shape, first, last)});
    first = last;
  }
  return movement;
}

}  // namespace headrace
