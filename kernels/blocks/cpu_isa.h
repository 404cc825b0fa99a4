// The vectorised pieces of kernels/blocks/op.h, one table an instruction set (isa.h). Serial; any thread. The params
// are the public ones, checked.
#pragma once

#include <cstdint>

#include "kernels/blocks/op.h"
#include "kernels/cpu/isa.h"

namespace headrace::kernels {

// Blocks [first, first + count) of a call's, of one KV head.
struct BlockRun {
  int64_t kv_head, first, count;
};
constexpr int64_t kBlockRunOfRows = 16;  // at most, for score_rows: as many summaries as stay near

struct BlockKernels {
  // The largest of each element of kBlockRows rows, then the least.
  void (*summarise)(DType type, const void* const* rows, int64_t head_dim, void* out);
  // The sum of Quest's bounds is the bound of sums: of each element, the mean over queries and heads of its positive
  // part, then of its negative part, to the KV head's place in the workspace. score_means() reads them.
  void (*mean_parts)(const ScoreBlocksParams& params, int64_t kv_head);
  void (*score_means)(const ScoreBlocksParams& params, const BlockRun& run);
  // Every query with every block.
  void (*score_rows)(const ScoreBlocksParams& params, const BlockRun& run);
};
HEADRACE_DECLARE_ISA(BlockKernels, block_kernels)

}  // namespace headrace::kernels
