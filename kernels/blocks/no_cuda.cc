// What stands in for the blocks' CUDA bodies in a build without them.
#include "kernels/blocks/cuda.h"
#include "kernels/cuda/no_body.h"

namespace headrace::kernels::cuda {

void summarise_blocks(const SummariseBlocksParams&, Stream&) { no_body("summarise_blocks"); }
void score_blocks(const ScoreBlocksParams&, Stream&) { no_body("score_blocks"); }
void select_blocks(const SelectBlocksParams&, Stream&) { no_body("select_blocks"); }
void gather_blocks(const GatherBlocksParams&, Stream&) { no_body("gather_blocks"); }
void copy_window(const CopyWindowParams&, Stream&) { no_body("copy_window"); }

}  // namespace headrace::kernels::cuda
