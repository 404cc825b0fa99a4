// The bodies of kernels/blocks/op.h. score_blocks() takes kMean and kMax alone, as the public function passes them on.
// Internal to the op.
#pragma once

#include "kernels/blocks/op.h"
#include "kernels/cuda/bodies.h"

namespace headrace::kernels {

HEADRACE_BODIES(summarise_blocks, SummariseBlocksParams)
HEADRACE_BODIES(score_blocks, ScoreBlocksParams)
HEADRACE_BODIES(select_blocks, SelectBlocksParams)
HEADRACE_BODIES(gather_blocks, GatherBlocksParams)
HEADRACE_BODIES(copy_window, CopyWindowParams)

}  // namespace headrace::kernels
