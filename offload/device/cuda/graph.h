// The body of CudaGraph: owner of a cudaGraphExec_t. Internal to offload/cuda. Threads as in stream.h.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "offload/device/cuda_stream.h"

namespace headrace {

using LinkBytes = std::array<uint64_t, kLinkCount>;

class CudaGraphBody final : public CudaGraph {
 public:
  // `copied`: the bytes of its copies, by link.
  CudaGraphBody(CudaStream& stream, cudaGraph_t recorded, const LinkBytes& copied);
  ~CudaGraphBody() override;
  void launch() override;

 private:
  CudaStream& stream_;
  const LinkBytes copied_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace headrace
