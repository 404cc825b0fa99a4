// The CUDA backend's stream, for the CUDA bodies of kernels. It carries what those bodies need once a stream (a
// cuBLASLt handle with its workspace, say), made by them when first used. Includes nothing of CUDA. Threads as stream.h
// says.
#pragma once

#include <memory>

#include "cache/base.h"
#include "offload/device/device.h"
#include "offload/device/stream.h"

namespace headrace {

// What was recorded on a stream, to be launched on it any number of times. Holds the parameters of every kernel and
// copy, not what they point at. The stream must outlive it, and have run its launches.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  virtual void launch() = 0;

 protected:
  CudaGraph() = default;
};

class CudaStream : public Stream {
 public:
  Device& device() const { return device_; }

  // What the kernels attach; empty at first. Destroyed when the stream goes, after its work has run and while the
  // cudaStream_t is still there. Memory for it comes from device().allocate(), so that --vram counts it.
  std::shared_ptr<void>& attachment() { return attachment_; }

  // After every launch: throws Error with the kernel's name and CUDA's error if the launch failed. The name is kept,
  // for an error that shows only when the kernel runs. `kernel` is a literal.
  virtual void check_launch(const char* kernel) = 0;

  // What is enqueued between the two is recorded and does not run: kernels and copies alone, enqueued by this thread.
  // Copies are counted when they are launched. Throws Error; drop_recording() is for the way out of an error.
  virtual void begin_recording() = 0;
  virtual std::unique_ptr<CudaGraph> end_recording() = 0;
  virtual void drop_recording() noexcept = 0;

  // cudaStream_t. Makes the stream's device current for the calling thread, as a launch needs it.
  void* native() const override = 0;

 protected:
  explicit CudaStream(Device& device) : Stream(Backend::kCuda), device_(device) {}

 private:
  Device& device_;
  std::shared_ptr<void> attachment_;
};

// REQUIRES: stream.backend() == Backend::kCuda.
inline CudaStream& cuda_stream(Stream& stream) {
  CHECK(stream.backend() == Backend::kCuda);
  return static_cast<CudaStream&>(stream);
}

}  // namespace headrace
