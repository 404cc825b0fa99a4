// The CUDA bodies of kernels/attention/op.h: launchers. Asynchronous on the stream. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/attention/op.h"

namespace headrace::kernels::cuda {

void prefill_attention(const PrefillAttentionParams& params, Stream& stream);
void prefix_attention(const PrefixAttentionParams& params, Stream& stream);
void tail_attention(const TailAttentionParams& params, Stream& stream);
void clear_state(const ClearStateParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
