#include "offload/device/cuda/stream.h"

#include "offload/device/cuda/check.h"

namespace headrace {
namespace {

cudaMemcpyKind kind_of(Link link) {
  switch (link) {
    case Link::kHostToDevice:
      return cudaMemcpyHostToDevice;
    case Link::kDeviceToHost:
      return cudaMemcpyDeviceToHost;
    case Link::kWithinDevice:
      return cudaMemcpyDeviceToDevice;
  }
  return cudaMemcpyDefault;
}

}  // namespace

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

CudaEvent::CudaEvent(int gpu) {
  check_cuda(cudaSetDevice(gpu), "cudaSetDevice");
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

CudaEvent::~CudaEvent() { (void)cudaEventDestroy(event_); }  // pending waits keep what they need

bool CudaEvent::done() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // cudaErrorNotReady counts as an error, which a later launch check would report
    return false;
  }
  check_cuda(status, "cudaEventQuery");
  return true;
}

void CudaEvent::synchronize() { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

CudaStreamBody::CudaStreamBody(Device& device, int gpu, std::string_view name, StreamRole role)
    : CudaStream(device), gpu_(gpu), name_(name) {
  check_cuda(cudaSetDevice(gpu), "cudaSetDevice");
  check_cuda(cudaDeviceGetAttribute(&sees_pinned_, cudaDevAttrCanUseHostPointerForRegisteredMem, gpu),
             "cudaDeviceGetAttribute");
  int least = 0, greatest = 0;  // the highest priority is the smallest number
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  const int priority = role == StreamRole::kCopy ? greatest : least;
  check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "cudaStreamCreateWithPriority",
             name_);
}

CudaStreamBody::~CudaStreamBody() {
  (void)cudaSetDevice(gpu_);
  (void)cudaStreamSynchronize(stream_);
  if (beside_ != nullptr) (void)cudaStreamSynchronize(beside_);
  attachment().reset();
  (void)cudaStreamDestroy(stream_);
  if (beside_ != nullptr) (void)cudaStreamDestroy(beside_);
  for (cudaEvent_t event : {marked_, joined_}) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
  (void)cudaGetLastError();
}

void CudaStreamBody::count(Link link, size_t bytes) {
  if (recording_) {
    recorded_bytes_[static_cast<size_t>(link)] += bytes;
  } else {
    device().count(link, bytes);
  }
}

void CudaStreamBody::copy_small_bytes(void* dst, const void* src, size_t bytes, Link link) {
  if (!sees_pinned_) return copy_bytes(dst, src, bytes, link);
  count(link, bytes);
  if (bytes == 0) return;
  launch_small_copy(dst, src, bytes, native());
  check_launch("small_copy");
}

void CudaStreamBody::copy_bytes(void* dst, const void* src, size_t bytes, Link link) {
  count(link, bytes);
  if (bytes == 0) return;
  const cudaError_t status = cudaMemcpyAsync(dst, src, bytes, kind_of(link), stream_);
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, "cudaMemcpyAsync", str(format_bytes(bytes), ", ", about()));
}

void CudaStreamBody::copy_piece_bytes(void* dst, const void* src, const CopyPieces& pieces, Link link) {
  if (pieces.count <= 1) return CudaStream::copy_piece_bytes(dst, src, pieces, link);
  count(link, pieces.bytes * pieces.count);
  const cudaError_t status = cudaMemcpy2DAsync(dst, pieces.dst_stride, src, pieces.src_stride, pieces.bytes,
                                               pieces.count, kind_of(link), stream_);
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, "cudaMemcpy2DAsync", str(pieces.count, " x ", format_bytes(pieces.bytes), ", ", about()));
}

void CudaStreamBody::record(Event& event) {
  CHECK(!recording_, "an event in a recording never comes");
  const cudaError_t status = cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_);
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, "cudaEventRecord", about());
}

void CudaStreamBody::wait(const Event& event) {
  const cudaError_t status = cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).get(), 0);
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, "cudaStreamWaitEvent", about());
}

void CudaStreamBody::synchronize() {
  if (unjoined_) [[unlikely]]
    (void)cudaStreamSynchronize(beside_);
  const cudaError_t status = cudaStreamSynchronize(stream_);
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, "cudaStreamSynchronize", about());
}

void CudaStreamBody::check() {
  const cudaError_t status = cudaStreamQuery(stream_);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // cudaErrorNotReady counts as an error, which a later launch check would report
    return;
  }
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, "cudaStreamQuery", about());
}

void* CudaStreamBody::native() const {
  check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  return stream_;
}

void CudaStreamBody::check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, str("kernel ", kernel), about());
  last_kernel_.store(kernel, std::memory_order_relaxed);
}

void CudaStreamBody::begin_recording() {
  CHECK(!recording_);
  check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  // Thread-local capture: another thread may be allocating.
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture", about());
  recorded_bytes_ = {};
  recording_ = true;
}

std::unique_ptr<CudaGraph> CudaStreamBody::end_recording() {
  CHECK(recording_);
  recording_ = false;
  cudaGraph_t recorded = nullptr;
  check_cuda(cudaStreamEndCapture(stream_, &recorded), "cudaStreamEndCapture", about());
  const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(recorded, cudaGraphDestroy);
  return std::make_unique<CudaGraphBody>(*this, recorded, recorded_bytes_);
}

void CudaStreamBody::mark() {
  if (beside_ == nullptr) {
    check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
    for (cudaEvent_t* event : {&marked_, &joined_}) {
      if (*event != nullptr) continue;
      check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreateWithFlags", about());
    }
    check_cuda(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", about());
  }
  check_cuda(cudaEventRecord(marked_, stream_), "cudaEventRecord", about());
}

void* CudaStreamBody::beside() {
  CHECK(beside_ != nullptr, "mark() was not called");
  check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  check_cuda(cudaStreamWaitEvent(beside_, marked_, 0), "cudaStreamWaitEvent", about());
  unjoined_ = true;
  return beside_;
}

void CudaStreamBody::join() {
  check_cuda(cudaEventRecord(joined_, beside_), "cudaEventRecord", about());
  check_cuda(cudaStreamWaitEvent(stream_, joined_, 0), "cudaStreamWaitEvent", about());
  unjoined_ = false;
}

void CudaStreamBody::drop_recording() noexcept {
  recording_ = false;
  cudaGraph_t recorded = nullptr;
  if (cudaStreamEndCapture(stream_, &recorded) == cudaSuccess) (void)cudaGraphDestroy(recorded);
  (void)cudaGetLastError();
}

// A kernel that fails while it runs shows up in a later call of any stream; the name is the first suspect.
std::string CudaStreamBody::about() const {
  const char* const kernel = last_kernel_.load(std::memory_order_relaxed);
  return str("on stream '", name_, "'", kernel == nullptr ? "" : ", where the last kernel was ",
             kernel == nullptr ? "" : kernel);
}

}  // namespace headrace
