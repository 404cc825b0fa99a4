// The bodies of kernels/sample/op.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/sample/op.h"

namespace headrace::kernels {

namespace cuda {

// A row is sampled in parts: each part writes two keys of 64 bits, and each row its filters' border.
constexpr int64_t kSamplePartTokens = 4096;
constexpr uint64_t sample_workspace_bytes(int64_t rows, int64_t vocab) {
  return static_cast<uint64_t>(rows) * (static_cast<uint64_t>(ceil_div(vocab, kSamplePartTokens)) * 16 + 8);
}

}  // namespace cuda

HEADRACE_BODIES(sample, SampleParams)
HEADRACE_BODIES(penalize_logits, PenalizeLogitsParams)
HEADRACE_BODIES(mask_logits, MaskLogitsParams)
HEADRACE_BODIES(token_log_probs, TokenLogProbsParams)

}  // namespace headrace::kernels
