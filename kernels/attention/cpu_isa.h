// The vectorised parts of attention, one table per instruction set (isa.h). Serial; any thread. Each uses at most about
// 800 KiB of the caller's stack. The params are those of kernels/attention/op.h, already checked.
#pragma once

#include <cstdint>

#include "kernels/attention/op.h"
#include "kernels/cpu/isa.h"

namespace headrace::kernels {

constexpr int64_t kAttentionMaxRows = 256;                          // of a block: its queries x its heads
constexpr int64_t kAttentionMaxElements = kAttentionMaxRows * 256;  // of a block's rows
// Rows of a block whose heads have this size.
constexpr int64_t attention_rows(int64_t head_dim) {
  return head_dim <= 256 ? kAttentionMaxRows : kAttentionMaxElements / kMaxAttentionHeadDim;
}

// The rows of q of one call: some queries, and some of the query heads that share a KV head.
struct AttentionBlock {
  int64_t first_query, queries;
  int64_t kv_head;
  int64_t first_head, heads;  // absolute
};

struct AttentionKernels {
  void (*prefill)(const PrefillAttentionParams& params, const AttentionBlock& block);
  // Writes the state of segment n to the scratch; if no row is seen, m = -inf and o is unchanged.
  void (*prefix)(const PrefixAttentionParams& params, int64_t n, const AttentionBlock& block);
  // Folds one query's states, left to right, and writes its part of `out`, if that is wanted.
  void (*fold_prefix)(const PrefixAttentionParams& params, int64_t query);
  void (*tail)(const TailAttentionParams& params, const AttentionBlock& block);  // one query
};
HEADRACE_DECLARE_ISA(AttentionKernels, attention_kernels)

}  // namespace headrace::kernels
