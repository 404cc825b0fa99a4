#include "cache/attention_parts.h"

#include <algorithm>
#include <bit>

namespace headrace {

// A part of a KV head is one thread block's work. A large GPU runs some 128 to 256 blocks at once, and more of them
// where rows are int8, which take less time each; so many should precede the part. More cost more for their states than
// they gain, and so do parts of 256 rows beyond a context of 8,192 (kernel_bench --parts, kernel_bench_h200_parts.txt).
int64_t attention_part_rows(int64_t first_row, int64_t kv_heads, DType k_type, DType v_type) {
  constexpr int64_t kLeast = 512;
  // int4 rows of 8 heads take 83 us in whole segments and 97 in parts, those of 4 heads 76 and 60.
  if (k_type == DType::kInt4 && kv_heads >= 8) return segment_range(segment_of(first_row)).rows;
  const int64_t blocks = k_type == DType::kInt8 || v_type == DType::kInt8 ? 256 : 128;
  const auto part = static_cast<uint64_t>(std::max(kLeast, first_row * kv_heads / blocks));
  return std::min<int64_t>(static_cast<int64_t>(std::bit_floor(part)), segment_range(segment_of(first_row)).rows);
}

}  // namespace headrace
