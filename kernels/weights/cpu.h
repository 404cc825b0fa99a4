// The CPU bodies of kernels/weights/op.h. The CPU keeps a part's rows as the file has them, one after another. Called
// on a compute stream's thread, with its pool.
#pragma once

#include "kernels/weights/op.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void store_weight(const StoreWeightParams& params, ThreadPool& pool);
void dequantise(const DequantiseParams& params, ThreadPool& pool);

}  // namespace headrace::kernels::cpu
