#include "offload/device/stopwatch.h"

#include <chrono>

#include "offload/device/backends.h"
#include "offload/device/cpu_stream.h"

namespace headrace {
namespace {

class CpuStopwatch final : public Stopwatch {
 public:
  void start(Stream& stream) override { look(stream, &started_); }
  void stop(Stream& stream) override { look(stream, &stopped_); }
  double ms() const override { return std::chrono::duration<double, std::milli>(stopped_ - started_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  static void look(Stream& stream, Clock::time_point* at) {
    cpu_stream(stream).enqueue([at](ThreadPool&) { *at = Clock::now(); });
  }

  Clock::time_point started_{}, stopped_{};  // written by the stream's thread
};

}  // namespace

std::unique_ptr<Stopwatch> make_stopwatch(Stream& stream) {
  if (stream.backend() == Backend::kCuda) return make_cuda_stopwatch(stream);
  return std::make_unique<CpuStopwatch>();
}

}  // namespace headrace
