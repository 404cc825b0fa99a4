// How an op's public function reaches its body: on a CPU stream the params travel by value into the stream's queue; on
// a CUDA stream the CUDA body launches. Without nvcc the CUDA bodies throw (kernels/cuda/no_body.h).
// Internal to kernels.
#pragma once

#include <type_traits>

#include "cache/base.h"
#include "offload/device/call_hash.h"
#include "offload/device/cpu_stream.h"

namespace headrace::kernels {

template <typename Params>
void enqueue_cpu(void (*body)(const Params&, ThreadPool&), const Params& params, Stream& stream) {
  cpu_stream(stream).enqueue([body, params](ThreadPool& pool) { body(params, pool); });
}

// Adds a call to the hash of a Replay that checks its keys: its function and, if no padding is among them, its
// parameters.
template <typename Params>
void hash_call(void (*body)(const Params&, ThreadPool&), const Params& params, Stream& stream) {
  stream.calls()->add(&body, sizeof body);
  if constexpr (std::has_unique_object_representations_v<Params>) stream.calls()->add(&params, sizeof params);
}

template <typename Params>
void dispatch(void (*cpu_body)(const Params&, ThreadPool&), void (*cuda_body)(const Params&, Stream&),
              const Params& params, Stream& stream) {
  if (stream.calls() != nullptr) [[unlikely]]
    hash_call(cpu_body, params, stream);
  if (stream.backend() == Backend::kCpu) {
    enqueue_cpu(cpu_body, params, stream);
  } else {
    cuda_body(params, stream);
  }
}

}  // namespace headrace::kernels
