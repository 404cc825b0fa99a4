#include "cache/attention_parts.h"

#include <algorithm>
#include <bit>

namespace headrace {

// A KV head's part is one thread block's. Up to the part, a layer has some 128 to 256 blocks: as many as a large GPU
// runs at once. More cost more for their states than they gain (kernel_bench --parts).
int64_t attention_part_rows(int64_t first_row, int64_t kv_heads) {
  constexpr int64_t kLeast = 256, kBlocks = 128;
  const auto part = static_cast<uint64_t>(std::max(kLeast, first_row * kv_heads / kBlocks));
  return std::min<int64_t>(static_cast<int64_t>(std::bit_floor(part)), segment_range(segment_of(first_row)).rows);
}

}  // namespace headrace
