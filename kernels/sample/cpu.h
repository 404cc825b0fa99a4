// The CPU body of kernels/sample/op.h: the truth that other backends are tested against. Called on a compute stream's
// thread, with its pool.
#pragma once

#include "kernels/sample/op.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void sample(const SampleParams& params, ThreadPool& pool);

}  // namespace headrace::kernels::cpu
