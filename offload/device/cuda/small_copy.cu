#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "offload/device/cuda/stream.h"

namespace headrace {
namespace {

constexpr unsigned kThreads = 256, kMaxBlocks = 64;  // 256 KiB in flight

// 16 bytes a thread if both sides are aligned, then single bytes. The host may have written since the last launch, so
// reads bypass the caches (__ldcv).
__global__ void __launch_bounds__(kThreads) small_copy(unsigned char* to, const unsigned char* from, size_t bytes) {
  const size_t first = size_t{blockIdx.x} * kThreads + threadIdx.x, stride = size_t{gridDim.x} * kThreads;
  const bool aligned = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 == 0;
  const size_t wide = aligned ? bytes / 16 : 0;
  for (size_t i = first; i < wide; i += stride) {
    reinterpret_cast<uint4*>(to)[i] = __ldcv(reinterpret_cast<const uint4*>(from) + i);
  }
  for (size_t i = wide * 16 + first; i < bytes; i += stride) to[i] = __ldcv(from + i);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------

void launch_small_copy(void* dst, const void* src, size_t bytes, void* stream) {
  const size_t blocks = std::clamp<size_t>((bytes + kThreads * 16 - 1) / (kThreads * 16), 1, kMaxBlocks);
  small_copy<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<unsigned char*>(dst), static_cast<const unsigned char*>(src), bytes);
}

}  // namespace headrace
