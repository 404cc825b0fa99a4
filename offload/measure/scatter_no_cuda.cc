// Replaces the CUDA bodies of offload/measure/scatter.h in a build without CUDA; no stream leads here.
#include "offload/measure/scatter_cuda.h"

namespace headrace::cuda {

void copy_rows(const StridedCopy&, Stream&) { CHECK(false, "no CUDA"); }
void gather_pages(const PageGather&, Stream&) { CHECK(false, "no CUDA"); }

}  // namespace headrace::cuda
