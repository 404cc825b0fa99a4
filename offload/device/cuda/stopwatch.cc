#include "offload/device/stopwatch.h"

#include <cuda_runtime_api.h>

#include "offload/device/backends.h"
#include "offload/device/cuda/check.h"

namespace headrace {
namespace {

class CudaStopwatch final : public Stopwatch {
 public:
  explicit CudaStopwatch(Stream& stream) {
    (void)stream.native();  // makes its device current
    for (cudaEvent_t* event : {&started_, &stopped_}) {
      check_cuda(cudaEventCreateWithFlags(event, cudaEventDefault), "cudaEventCreateWithFlags", "a stopwatch");
    }
  }
  ~CudaStopwatch() override {
    for (const cudaEvent_t event : {started_, stopped_}) (void)cudaEventDestroy(event);
    (void)cudaGetLastError();
  }
  void start(Stream& stream) override { record(stream, started_); }
  void stop(Stream& stream) override { record(stream, stopped_); }
  double ms() const override {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, started_, stopped_), "cudaEventElapsedTime", "a stopwatch");
    return static_cast<double>(ms);
  }

 private:
  static void record(Stream& stream, cudaEvent_t event) {
    check_cuda(cudaEventRecord(event, static_cast<cudaStream_t>(stream.native())), "cudaEventRecord", "a stopwatch");
  }

  cudaEvent_t started_ = nullptr, stopped_ = nullptr;
};

}  // namespace

std::unique_ptr<Stopwatch> make_cuda_stopwatch(Stream& stream) { return std::make_unique<CudaStopwatch>(stream); }

}  // namespace headrace
