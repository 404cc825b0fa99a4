#include "offload/device/cuda/graph.h"

#include "offload/device/cuda/check.h"

namespace headrace {

CudaGraphBody::CudaGraphBody(CudaStream& stream, cudaGraph_t recorded, const LinkBytes& copied)
    : stream_(stream), copied_(copied) {
  check_cuda(cudaGraphInstantiateWithFlags(&graph_, recorded, 0), "cudaGraphInstantiateWithFlags");
}

CudaGraphBody::~CudaGraphBody() {
  (void)cudaGraphExecDestroy(graph_);
  (void)cudaGetLastError();
}

void CudaGraphBody::launch() {
  check_cuda(cudaGraphLaunch(graph_, static_cast<cudaStream_t>(stream_.native())), "cudaGraphLaunch");
  for (size_t link = 0; link < kLinkCount; ++link) stream_.device().count(static_cast<Link>(link), copied_[link]);
}

}  // namespace headrace
