// The bodies of the CUDA backend's streams, events and graphs: owners of a cudaStream_t, a cudaEvent_t, a
// cudaGraphExec_t. Internal to offload/device/cuda. Threads as in stream.h.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

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

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int gpu);
  ~CudaEvent() override;
  bool done() const override;
  void synchronize() override;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStreamBody final : public CudaStream {
 public:
  // Copy streams have priority over compute streams on the multiprocessors (which copies within the device use).
  CudaStreamBody(Device& device, int gpu, std::string_view name, StreamRole role);
  ~CudaStreamBody() override;

  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;
  void check() override;
  void* native() const override;
  void check_launch(const char* kernel) override;
  void begin_recording() override;
  std::unique_ptr<CudaGraph> end_recording() override;
  void drop_recording() noexcept override;
  void mark() override;
  void* beside() override;
  void join() override;

 protected:
  void copy_bytes(void* dst, const void* src, size_t bytes, Link link) override;
  void copy_small_bytes(void* dst, const void* src, size_t bytes, Link link) override;
  void copy_piece_bytes(void* dst, const void* src, const CopyPieces& pieces, Link link) override;

 private:
  void count(Link link, size_t bytes);
  std::string about() const;

  const int gpu_;
  const std::string name_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t beside_ = nullptr;  // null: mark() was not called
  cudaEvent_t marked_ = nullptr, joined_ = nullptr;
  bool unjoined_ = false;  // work was enqueued there, and an error came before join()
  int sees_pinned_ = 0;    // kernels can read pinned memory at its host address
  bool recording_ = false;
  LinkBytes recorded_bytes_{};
  std::atomic<const char*> last_kernel_{nullptr};  // written by the enqueuing thread, read by synchronize()
};

// The kernel behind copy_small(), in small_copy.cu. Asynchronous; `stream` is a cudaStream_t whose device is current.
// The caller checks the launch.
void launch_small_copy(void* dst, const void* src, size_t bytes, void* stream);

}  // namespace headrace
