// The bodies of kernels/tree/op.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/tree/op.h"

namespace headrace::kernels {

namespace cuda {

// A row is ranked in parts: each leaves its k best keys of 64 bits, its largest value and its sum.
constexpr int64_t kTopPartTokens = 4096;
constexpr uint64_t top_log_probs_workspace_bytes(int64_t rows, int64_t vocab, int64_t k) {
  return static_cast<uint64_t>(rows * ceil_div(vocab, kTopPartTokens)) * (static_cast<uint64_t>(k) * 8 + 8);
}

}  // namespace cuda

HEADRACE_BODIES(top_log_probs, TopLogProbsParams)
HEADRACE_BODIES(tree_grow, TreeGrowParams)
HEADRACE_BODIES(tree_select, TreeSelectParams)
HEADRACE_BODIES(tree_accept, TreeAcceptParams)

}  // namespace headrace::kernels
