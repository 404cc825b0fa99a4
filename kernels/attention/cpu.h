// The CPU bodies of kernels/attention/op.h: the truth that other backends are tested against. Called on a compute
// stream's thread, with its pool.
#pragma once

#include "kernels/attention/op.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void prefill_attention(const PrefillAttentionParams& params, ThreadPool& pool);
void prefix_attention(const PrefixAttentionParams& params, ThreadPool& pool);
void tail_attention(const TailAttentionParams& params, ThreadPool& pool);
void clear_state(const ClearStateParams& params, ThreadPool& pool);

}  // namespace headrace::kernels::cpu
