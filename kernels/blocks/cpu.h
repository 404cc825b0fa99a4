// The CPU bodies of kernels/blocks/op.h: the truth that other backends are tested against. Called on a compute stream's
// thread, with its pool. score_blocks() takes kMean and kMax alone, as the public function passes them on.
#pragma once

#include "kernels/blocks/op.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void summarise_blocks(const SummariseBlocksParams& params, ThreadPool& pool);
void score_blocks(const ScoreBlocksParams& params, ThreadPool& pool);
void select_blocks(const SelectBlocksParams& params, ThreadPool& pool);
void gather_blocks(const GatherBlocksParams& params, ThreadPool& pool);
void copy_window(const CopyWindowParams& params, ThreadPool& pool);

}  // namespace headrace::kernels::cpu
