#include "offload/device/cuda/trace.h"

#include <cmath>

#include "cache/base.h"
#include "offload/device/cuda/check.h"
#include "offload/host/clock.h"

namespace headrace {
namespace {

constexpr int64_t kNsPerBase = 1'000'000'000;
constexpr int kSights = 16;
// Crystal clocks differ by less than kMaxDrift; over shorter times than kMinForDrift the error of a sight would
// dominate.
constexpr double kMaxDrift = 1e-3, kMinForDrift = 1e9;

// False: one of them was never recorded, or was recorded in a graph.
bool elapsed_ns(cudaEvent_t from, cudaEvent_t to, double* ns) {
  float ms = 0;
  if (cudaEventElapsedTime(&ms, from, to) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  *ns = static_cast<double>(ms) * 1e6;
  return true;
}

}  // namespace

CudaTraceClock::CudaTraceClock(int gpu) : gpu_(gpu) {
  check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", "the trace");
  new_base();
  first_ = sight();
}

CudaTraceClock::~CudaTraceClock() {
  (void)cudaSetDevice(gpu_);
  for (const cudaEvent_t event : all_) (void)cudaEventDestroy(event);
  (void)cudaStreamDestroy(stream_);
  (void)cudaGetLastError();
}

cudaEvent_t CudaTraceClock::new_event() {
  all_.push_back(nullptr);
  check_cuda(cudaEventCreateWithFlags(&all_.back(), cudaEventDefault), "cudaEventCreateWithFlags", "the trace");
  return all_.back();
}

cudaEvent_t CudaTraceClock::take_event() {
  if (free_.empty()) {
    if (all_.size() < kMaxEvents) return new_event();
    if (!read_oldest()) return nullptr;
  }
  const cudaEvent_t event = free_.back();
  free_.pop_back();
  return event;
}

void CudaTraceClock::new_base() {
  const cudaEvent_t event = new_event();
  check_cuda(cudaEventRecord(event, stream_), "cudaEventRecord", "the trace");
  bases_.push_back({event, host_now_ns(), 0});
}

void CudaTraceClock::stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) {
  const auto native = static_cast<cudaStream_t>(stream.native());
  const MutexLock lock(mutex_);
  const cudaEvent_t event = take_event();
  if (event == nullptr) return;  // the slice has no time and counts as dropped
  if (host_now_ns() - bases_.back().recorded_host_ns > kNsPerBase) new_base();
  pending_.push_back({event, &slice, edge, bases_.size() - 1});
  check_cuda(cudaEventRecord(event, native), "cudaEventRecord", "the trace");
}

bool CudaTraceClock::read_oldest() {
  if (pending_.empty()) return false;
  const Stamp stamp = pending_.front();
  if (cudaEventQuery(stamp.event) == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  double ns = 0;
  if (elapsed_ns(bases_[stamp.base].event, stamp.event, &ns)) {
    stamp.slice->stamp(stamp.edge, std::llround(base_ns(stamp.base) + ns));
  }
  pending_.pop_front();
  free_.push_back(stamp.event);
  return true;
}

double CudaTraceClock::base_ns(size_t base) {
  for (; read_bases_ <= base; ++read_bases_) {
    double ns = 0;
    (void)cudaEventSynchronize(bases_[read_bases_].event);
    (void)elapsed_ns(bases_[read_bases_ - 1].event, bases_[read_bases_].event, &ns);
    bases_[read_bases_].ns = bases_[read_bases_ - 1].ns + ns;
  }
  return bases_[base].ns;
}

// The device's time of the event is between two readings of the host's clock; of several attempts the closest pair
// counts.
CudaTraceClock::Sight CudaTraceClock::sight() {
  new_base();
  const size_t base = bases_.size() - 1;
  const cudaEvent_t event = new_event();
  Sight best{};
  int64_t best_gap = INT64_MAX;
  for (int i = 0; i < kSights; ++i) {
    const int64_t before = host_now_ns();
    check_cuda(cudaEventRecord(event, stream_), "cudaEventRecord", "the trace");
    check_cuda(cudaEventSynchronize(event), "cudaEventSynchronize", "the trace");
    const int64_t after = host_now_ns();
    double ns = 0;
    if (after - before >= best_gap || !elapsed_ns(bases_[base].event, event, &ns)) continue;
    best_gap = after - before;
    best = {base_ns(base) + ns, before + best_gap / 2};
  }
  return best;
}

void CudaTraceClock::collect() {
  check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  const MutexLock lock(mutex_);
  while (!pending_.empty()) {
    check_cuda(cudaEventSynchronize(pending_.front().event), "cudaEventSynchronize", "the trace");
    CHECK(read_oldest());
  }
  last_ = sight();
}

int64_t CudaTraceClock::host_ns(int64_t stamp_ns) const {
  const MutexLock lock(mutex_);
  const double device_ns = last_.device_ns - first_.device_ns;
  double rate = 1;
  if (device_ns >= kMinForDrift) rate = static_cast<double>(last_.host_ns - first_.host_ns) / device_ns;
  if (std::abs(rate - 1) > kMaxDrift) rate = 1;
  return first_.host_ns + std::llround((static_cast<double>(stamp_ns) - first_.device_ns) * rate);
}

}  // namespace headrace
