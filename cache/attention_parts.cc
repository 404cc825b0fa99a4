#include "cache/attention_parts.h"

#include <algorithm>
#include <bit>

namespace headrace {

// A thread block reads a part of one KV head. Up to any row there are about as many blocks as a large GPU runs at once:
// 128, or 256 of int8 rows, which take less time each. More parts cost more for their states than they gain, and so do
// parts of 256 rows beyond a context of 8,192 (kernel_bench --parts, kernel_bench_h200_parts.txt).
int64_t attention_part_rows(int64_t first_row, int64_t kv_heads, DType k_type, DType v_type) {
  constexpr int64_t kLeast = 512;
  const int64_t whole = segment_range(segment_of(first_row)).rows;
  // int4 rows of 8 heads take 83 us in whole segments and 97 in parts, those of 4 heads 76 and 60.
  if (k_type == DType::kInt4 && kv_heads >= 8) return whole;
  const int64_t blocks = k_type == DType::kInt8 || v_type == DType::kInt8 ? 256 : 128;
  const auto part = static_cast<uint64_t>(std::max(kLeast, first_row * kv_heads / blocks));
  return std::min(static_cast<int64_t>(std::bit_floor(part)), whole);
}

}  // namespace headrace
