// The CUDA backend's trace clock: timed events, recorded on the streams and read back at the end of the run, or one by
// one once there are kMaxEvents of them; nothing waits for the device before collect(). Times are in ns from a base
// event. CUDA returns a float in milliseconds, so a new base is recorded every second, on a separate stream. The host's
// clock is matched to the device's at the beginning and at the end. Owns the events and that stream. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <vector>

#include "offload/device/trace_clock.h"
#include "offload/host/thread_annotations.h"

namespace headrace {

class CudaTraceClock final : public TraceClock {
 public:
  static constexpr size_t kMaxEvents = 65536;

  explicit CudaTraceClock(int gpu);
  ~CudaTraceClock() override;

  void stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) override;
  void collect() override;
  int64_t host_ns(int64_t stamp_ns) const override;

 private:
  struct Stamp {
    cudaEvent_t event;
    TraceSlice* slice;
    TraceEdge edge;
    size_t base;
  };
  struct Base {
    cudaEvent_t event;
    int64_t recorded_host_ns;
    double ns;  // after the first base; valid for bases below read_bases_
  };
  // One moment on both clocks.
  struct Sight {
    double device_ns;
    int64_t host_ns;
  };

  cudaEvent_t new_event() REQUIRES(mutex_);
  cudaEvent_t take_event() REQUIRES(mutex_);  // null: all are in flight
  void new_base() REQUIRES(mutex_);
  bool read_oldest() REQUIRES(mutex_);  // false: the device has not reached it
  double base_ns(size_t base) REQUIRES(mutex_);
  Sight sight() REQUIRES(mutex_);

  const int gpu_;
  mutable Mutex mutex_;
  cudaStream_t stream_ = nullptr;  // set once
  std::vector<cudaEvent_t> all_ GUARDED_BY(mutex_), free_ GUARDED_BY(mutex_);
  std::deque<Stamp> pending_ GUARDED_BY(mutex_);  // in recording order
  std::vector<Base> bases_ GUARDED_BY(mutex_);
  size_t read_bases_ GUARDED_BY(mutex_) = 1;
  Sight first_ GUARDED_BY(mutex_){}, last_ GUARDED_BY(mutex_){};
};

}  // namespace headrace
