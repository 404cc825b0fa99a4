// The CUDA bodies of kernels/blocks/op.h: launchers. Asynchronous on the stream. score_blocks() takes kMean and kMax
// alone, as the public function passes them on. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/blocks/op.h"

namespace headrace::kernels::cuda {

void summarise_blocks(const SummariseBlocksParams& params, Stream& stream);
void score_blocks(const ScoreBlocksParams& params, Stream& stream);
void select_blocks(const SelectBlocksParams& params, Stream& stream);
void gather_blocks(const GatherBlocksParams& params, Stream& stream);
void copy_window(const CopyWindowParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
