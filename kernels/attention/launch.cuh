// Launches attention's kernels on the stream, with their shared memory, and checks the launch. Host code, internal to
// kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "cache/base.h"
#include "kernels/attention/op.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

struct Launch {
  dim3 grid;
  int threads, shared_bytes;
};

// On the native stream `on`, which is of `stream`.
template <typename Params>
void launch_at(void* on, void (*kernel)(Params), const char* name, const Launch& size, const Params& params,
               CudaStream& stream) {
  const dim3& grid = size.grid;
  CHECK(grid.x > 0 && grid.y > 0 && grid.y < 65536 && grid.z > 0 && grid.z < 65536, name, ": grid ", grid.x, " x ",
        grid.y, " x ", grid.z);
  // More than 48 KB a block must be requested, on each device. A failure shows at the launch.
  if (size.shared_bytes > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, size.shared_bytes);
  }
  kernel<<<grid, static_cast<unsigned>(size.threads), static_cast<size_t>(size.shared_bytes),
           static_cast<cudaStream_t>(on)>>>(params);
  stream.check_launch(name);
}

// `name` is a literal.
template <typename Params>
void launch(void (*kernel)(Params), const char* name, dim3 grid, int threads, int shared_bytes, const Params& params,
            CudaStream& stream) {
  launch_at(stream.native(), kernel, name, {grid, threads, shared_bytes}, params, stream);
}
// Beside what the stream has next, up to its join().
template <typename Params>
void launch_beside(void (*kernel)(Params), const char* name, dim3 grid, int threads, int shared_bytes,
                   const Params& params, CudaStream& stream) {
  launch_at(stream.fork(), kernel, name, {grid, threads, shared_bytes}, params, stream);
}

// Rotates the queries for int4 rows; returns the params with the rotated ones as q.
PrefixAttentionParams rotate_queries(const PrefixAttentionParams& params, CudaStream& stream);
// The segments' states of a call with low-bit rows that has_low_bit_tiles().
void low_bit_segment_states(const PrefixAttentionParams& params, CudaStream& stream);

// tail_attention() for shapes without a tensor-core body.
void tail_rows(const TailAttentionParams& params, CudaStream& stream);

}  // namespace headrace::kernels::cuda
