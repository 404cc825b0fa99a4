// The CUDA backend's stream, for the CUDA bodies of kernels. Holds what those bodies keep per stream (a cuBLASLt handle
// with its workspace, for example), which they create on first use. Includes nothing of CUDA. Threads as in stream.h.
#pragma once

#include <memory>

#include "cache/base.h"
#include "offload/device/device.h"
#include "offload/device/stream.h"

namespace headrace {

// Work recorded on a stream, which can be launched on it any number of times. Holds the parameters of every kernel and
// copy, not the memory they point to. The stream must outlive it and have run its launches.
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

  // State that kernels attach; initially empty. Destroyed with the stream, after its work has run and while the
  // cudaStream_t still exists. Its memory comes from device().allocate(), so --vram counts it.
  std::shared_ptr<void>& attachment() { return attachment_; }

  // Call after every launch: throws Error with the kernel's name and CUDA's error if the launch failed. Keeps the name
  // for an error that appears only when the kernel runs. `kernel` is a literal.
  virtual void check_launch(const char* kernel) = 0;

  // Work enqueued between begin and end is recorded and does not run. Only kernels and copies, enqueued by this thread,
  // are allowed. Copies count when they are launched. Throws Error; drop_recording() is for error paths.
  virtual void begin_recording() = 0;
  virtual std::unique_ptr<CudaGraph> end_recording() = 0;
  virtual void drop_recording() noexcept = 0;

  // For work beside other work: mark() remembers this point of the stream. beside() is a second cudaStream_t that waits
  // for what was enqueued here before the mark, and join() makes this stream wait for that one. All three may be
  // recorded, in one recording. REQUIRES: mark() comes before beside(), and beside() before join().
  virtual void mark() = 0;
  virtual void* beside() = 0;
  virtual void join() = 0;

  // cudaStream_t. Makes the stream's device current for the calling thread, as a launch requires.
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
