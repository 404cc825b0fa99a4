// The CPU bodies of kernels/tree/op.h: the truth that other backends are tested against. Called on a compute
// stream's thread, with its pool.
#pragma once

#include "kernels/tree/op.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void top_log_probs(const TopLogProbsParams& params, ThreadPool& pool);
void tree_grow(const TreeGrowParams& params, ThreadPool& pool);
void tree_select(const TreeSelectParams& params, ThreadPool& pool);
void tree_accept(const TreeAcceptParams& params, ThreadPool& pool);

}  // namespace headrace::kernels::cpu
