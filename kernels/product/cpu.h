// The CPU body of kernels/product/op.h. An output element's sum over k is cut and ordered by k alone, so that its bits
// depend neither on the other rows and columns of the call nor on the threads. Called on a compute stream's thread,
// with its pool.
#pragma once

#include "kernels/product/op.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void product(const ProductParams& params, ThreadPool& pool);

}  // namespace headrace::kernels::cpu
