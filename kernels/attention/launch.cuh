// Launches attention's kernels on the stream, with their shared memory, and checks the launch. Host code, internal to
// kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "cache/base.h"
#include "kernels/attention/op.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

// The stream, or the one beside it.
struct LaunchStream {
  CudaStream& stream;
  void* native;
  LaunchStream(CudaStream& of) : stream(of), native(of.native()) {}  // NOLINT: most launches are on the stream itself
  LaunchStream(CudaStream& of, void* beside) : stream(of), native(beside) {}
};

// `name` is a literal.
template <typename Params>
void launch(void (*kernel)(Params), const char* name, dim3 grid, int threads, int shared_bytes, const Params& params,
            const LaunchStream& on) {
  CHECK(grid.x > 0 && grid.y > 0 && grid.y < 65536 && grid.z > 0 && grid.z < 65536, name, ": grid ", grid.x, " x ",
        grid.y, " x ", grid.z);
  // More than 48 KB a block must be requested, on each device. A failure shows at the launch.
  if (shared_bytes > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }
  auto* const native = static_cast<cudaStream_t>(on.native);
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes), native>>>(params);
  on.stream.check_launch(name);
}

// Rotates the queries for int4 rows; returns the params with the rotated ones as q.
PrefixAttentionParams rotate_queries(const PrefixAttentionParams& params, const LaunchStream& on);
// The segments' states of a call with low-bit rows that has_low_bit_tiles().
void low_bit_segment_states(const PrefixAttentionParams& params, const LaunchStream& on);

// Prefill, and the segments' states of exact rows, with heads that has_wide_tiles() (kernels/attention/wide).
void wide_prefill(const PrefillAttentionParams& params, CudaStream& stream);
void wide_segment_states(const PrefixAttentionParams& params, const LaunchStream& on);

// tail_attention() for shapes without a tensor-core body.
void tail_rows(const TailAttentionParams& params, CudaStream& stream);

}  // namespace headrace::kernels::cuda
