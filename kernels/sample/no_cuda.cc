// What stands in for sampling's CUDA bodies in a build without them.
#include "kernels/cuda/no_body.h"
#include "kernels/sample/cuda.h"

namespace headrace::kernels::cuda {

void sample(const SampleParams&, Stream&) { no_body("sample"); }

}  // namespace headrace::kernels::cuda
