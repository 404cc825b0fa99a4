// The vectorised parts of kernels/blocks/op.h, one table per instruction set (isa.h). Serial; any thread. The params
// are the public ones, already checked.
#pragma once

#include <cstdint>

#include "kernels/blocks/op.h"
#include "kernels/cpu/isa.h"

namespace headrace::kernels {

// Blocks [first, first + count) of a call, for one KV head.
struct BlockRun {
  int64_t kv_head, first, count;
};
constexpr int64_t kBlockRunOfRows = 16;  // most blocks for score_rows: their summaries stay in the cache

struct BlockKernels {
  // The element-wise maximum of kBlockRows rows, then the minimum.
  void (*summarise)(DType type, const void* const* rows, int64_t head_dim, void* out);
  // The sum of Quest's bounds is the bound of sums: writes, for each element, the mean over queries and heads of its
  // positive part, then of its negative part, to the KV head's part of the workspace, for score_means().
  void (*mean_parts)(const ScoreBlocksParams& params, int64_t kv_head);
  void (*score_means)(const ScoreBlocksParams& params, const BlockRun& run);
  // Scores every query with every block.
  void (*score_rows)(const ScoreBlocksParams& params, const BlockRun& run);
};
HEADRACE_DECLARE_ISA(BlockKernels, block_kernels)

}  // namespace headrace::kernels
