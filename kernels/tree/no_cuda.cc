// What stands in for the draft tree's CUDA bodies in a build without them.
#include "kernels/cuda/no_body.h"
#include "kernels/tree/cuda.h"

namespace headrace::kernels::cuda {

void top_log_probs(const TopLogProbsParams&, Stream&) { no_body("top_log_probs"); }
void tree_grow(const TreeGrowParams&, Stream&) { no_body("tree_grow"); }
void tree_select(const TreeSelectParams&, Stream&) { no_body("tree_select"); }
void tree_accept(const TreeAcceptParams&, Stream&) { no_body("tree_accept"); }

}  // namespace headrace::kernels::cuda
