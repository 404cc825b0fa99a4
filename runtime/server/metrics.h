// What a server has done so far, in Prometheus' text format. Counts, never texts. Thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "offload/host/thread_annotations.h"
#include "runtime/engine/result.h"
#include "runtime/server/job_queue.h"

namespace headrace {

class ServerMetrics {
 public:
  void responded(int status);
  // A run has ended; `seconds` in the queue and in the engine.
  void ran(const GenerateResult& result, double queue_seconds, double run_seconds);
  // A request of the queue ended with an error that its run met.
  void failed(double queue_seconds, double run_seconds);
  // After how many seconds a place in the queue may be free: what a run takes on average, from 1 to 600.
  int retry_after_s() const;
  std::string text(const JobQueue& queue) const;

 private:
  struct Sums {
    std::map<int, int64_t> responses;  // by status
    int64_t runs = 0, cancelled = 0, failed = 0;
    int64_t prompt_tokens = 0, saved_tokens = 0, generated_tokens = 0;
    double queue_seconds = 0, run_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
  };
  mutable Mutex mutex_;
  Sums sums_ GUARDED_BY(mutex_);
};

}  // namespace headrace
