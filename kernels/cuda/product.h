// The CUDA body of kernels/product.h: a launcher. Asynchronous on the stream. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/product.h"

namespace headrace::kernels::cuda {

void product(const ProductParams& params, Stream& stream);

uint64_t product_workspace_bytes(Stream& stream);
uint64_t product_check_bytes(const ProductParams& params);

}  // namespace headrace::kernels::cuda
