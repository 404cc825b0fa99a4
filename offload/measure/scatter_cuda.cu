#include <cuda_runtime.h>

#include <algorithm>

#include "offload/device/cuda/check.h"
#include "offload/device/cuda_stream.h"
#include "offload/measure/scatter_cuda.h"

namespace headrace::cuda {
namespace {

constexpr unsigned kThreads = 256, kMaxBlocks = 1024;

// Copies 16-byte words of all pages, a grid apart, so that many are in flight whatever the page size. The host may have
// written since the last launch, so reads bypass the caches (__ldcv).
__global__ void __launch_bounds__(kThreads)
    gather_kernel(uint4* to, const uint4* from, const int32_t* pages, uint64_t words, uint32_t page_words) {
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * kThreads;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words; i += step) {
    const uint64_t page = i / page_words, word = i - page * page_words;
    to[i] = __ldcv(from + static_cast<uint64_t>(__ldg(pages + page)) * page_words + word);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------

void copy_rows(const StridedCopy& copy, Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  on.device().count(Link::kHostToDevice, copy.rows * copy.row_bytes);
  check_cuda(cudaMemcpy2DAsync(copy.to, copy.row_bytes, copy.from, copy.stride_bytes, copy.row_bytes, copy.rows,
                               cudaMemcpyHostToDevice, static_cast<cudaStream_t>(on.native())),
             "cudaMemcpy2DAsync");
}

void gather_pages(const PageGather& gather, Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  on.device().count(Link::kHostToDevice, gather.count * gather.page_bytes);
  const uint64_t words = gather.count * gather.page_bytes / sizeof(uint4);
  const auto blocks = static_cast<unsigned>(std::min<uint64_t>((words + kThreads - 1) / kThreads, kMaxBlocks));
  gather_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(on.native())>>>(
      static_cast<uint4*>(gather.to), static_cast<const uint4*>(gather.from), gather.pages, words,
      static_cast<uint32_t>(gather.page_bytes / sizeof(uint4)));
  on.check_launch("gather_pages");
}

}  // namespace headrace::cuda
