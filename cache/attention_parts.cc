#include "cache/attention_parts.h"

namespace headrace {

// On an H200 a query of Llama-3.1-8B's shape takes 42 us in place of 56 for 30,720 bf16 rows in parts of 1,024. Where
// there are enough blocks anyway, more states cost more than the blocks gain: 72 us in place of 70 for 61,440. int8
// rows take 48 in place of 52, int4 rows 92 in place of 83 (kernel_bench --parts, bench/results/bench_h200_mend.jsonl).
int64_t attention_part_rows(int64_t first_row, DType k_type, DType v_type) {
  constexpr int64_t kPart = 1024;
  if (k_type == DType::kInt4 || v_type == DType::kInt4) return segment_range(segment_of(first_row)).rows;
  const int64_t whole_from = low_bit(k_type) || low_bit(v_type) ? 65536 : 32768;
  return first_row < whole_from ? kPart : segment_range(segment_of(first_row)).rows;
}

}  // namespace headrace
