#include "offload/device/stopwatch.h"

#include "offload/device/backends.h"
#include "offload/device/cpu_stream.h"
#include "offload/host/clock.h"

namespace headrace {
namespace {

class CpuStopwatch final : public Stopwatch {
 public:
  void start(Stream& stream) override { look(stream, &started_); }
  void stop(Stream& stream) override { look(stream, &stopped_); }
  double ms() const override { return static_cast<double>(stopped_ - started_) / 1e6; }

 private:
  static void look(Stream& stream, int64_t* at_ns) {
    cpu_stream(stream).enqueue([at_ns](ThreadPool&) { *at_ns = host_now_ns(); });
  }

  int64_t started_ = 0, stopped_ = 0;  // written by the stream's thread
};

}  // namespace

std::unique_ptr<Stopwatch> make_stopwatch(Stream& stream) {
  if (stream.backend() == Backend::kCuda) return make_cuda_stopwatch(stream);
  return std::make_unique<CpuStopwatch>();
}

}  // namespace headrace
