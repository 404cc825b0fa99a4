// The CUDA bodies of kernels/tree/op.h: launchers. Asynchronous on the stream. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/tree/op.h"

namespace headrace::kernels::cuda {

// A row is ranked in parts: each leaves its k best keys of 64 bits, its largest value and its sum.
constexpr int64_t kTopPartTokens = 4096;
constexpr uint64_t top_log_probs_workspace_bytes(int64_t rows, int64_t vocab, int64_t k) {
  return static_cast<uint64_t>(rows * ceil_div(vocab, kTopPartTokens)) * (static_cast<uint64_t>(k) * 8 + 8);
}

void top_log_probs(const TopLogProbsParams& params, Stream& stream);
void tree_grow(const TreeGrowParams& params, Stream& stream);
void tree_select(const TreeSelectParams& params, Stream& stream);
void tree_accept(const TreeAcceptParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
