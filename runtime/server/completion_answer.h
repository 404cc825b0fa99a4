// The answer of one queued request. Until the engine begins it may still fail with a status; then it is sent as a whole
// or as events. Borrows the queue and the metrics. Thread: the server's I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/http/message.h"
#include "runtime/server/event_stream.h"
#include "runtime/server/job_queue.h"
#include "runtime/server/metrics.h"

namespace headrace {

class CompletionAnswer final : public LateAnswer {
 public:
  CompletionAnswer(std::shared_ptr<Job> job, double queue_seconds, JobQueue& queue, ServerMetrics& metrics);

  void begin(std::function<void()> wake) override { job_->feed.call_with_news(std::move(wake)); }
  Part take() override;
  void abandon() noexcept override;

 private:
  Part wait_for_turn();  // nothing has come yet

  const std::shared_ptr<Job> job_;
  const double queue_seconds_;
  std::optional<Job::Clock::time_point> deadline_;  // of its wait in the queue. None: the engine has begun
  JobQueue& queue_;
  ServerMetrics& metrics_;
  std::optional<EventStream> stream_{};
};

}  // namespace headrace
