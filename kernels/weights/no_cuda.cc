// What stands in for the weights' CUDA bodies in a build without them.
#include "kernels/cuda/no_body.h"
#include "kernels/weights/cuda.h"

namespace headrace::kernels::cuda {

void store_weight(const StoreWeightParams&, Stream&) { no_body("store_weight"); }
void dequantise(const DequantiseParams&, Stream&) { no_body("dequantise"); }

}  // namespace headrace::kernels::cuda
