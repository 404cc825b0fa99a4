// The CUDA body of kernels/product/op.h: a launcher. Asynchronous on the stream. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/product/op.h"

namespace headrace::kernels::cuda {

void product(const ProductParams& params, Stream& stream);

std::vector<std::string> plain_products(Stream& stream);
uint64_t product_library_version();

}  // namespace headrace::kernels::cuda
