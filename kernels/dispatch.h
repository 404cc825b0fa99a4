// How an op's public function reaches its body: on a CPU stream the params travel by value into the stream's queue; on
// a CUDA stream the CUDA body launches. Internal to kernels.
#pragma once

#include "cache/base.h"
#include "offload/cpu_stream.h"

namespace headrace::kernels {

template <typename Params>
void enqueue_cpu(void (*body)(const Params&, ThreadPool&), const Params& params, Stream& stream) {
  cpu_stream(stream).enqueue([body, params](ThreadPool& pool) { body(params, pool); });
}

}  // namespace headrace::kernels
