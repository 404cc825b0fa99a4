// The CUDA body of kernels/sample.h: a launcher. Asynchronous on the stream. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/sample.h"

namespace headrace::kernels::cuda {

void sample(const SampleParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
