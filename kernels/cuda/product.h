// The CUDA body of kernels/product.h: a launcher. Asynchronous on the stream. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/product.h"

namespace headrace::kernels::cuda {

void product(const ProductParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
