#include "runtime/server/completion_answer.h"

#include <ctime>
#include <utility>

#include "runtime/server/json_response.h"

namespace headrace {

CompletionAnswer::CompletionAnswer(std::shared_ptr<Job> job, double queue_seconds, JobQueue& queue,
                                   ServerMetrics& metrics)
    : job_(std::move(job)),
      queue_seconds_(queue_seconds),
      deadline_(job_->arrived +
                std::chrono::duration_cast<Job::Clock::duration>(std::chrono::duration<double>(queue_seconds))),
      queue_(queue),
      metrics_(metrics) {}

LateAnswer::Part CompletionAnswer::take() {
  if (stream_) {
    std::string text = stream_->take();
    return {.piece = std::move(text), .last = stream_->ended()};
  }
  News news = job_->feed.take();
  if (news.empty()) return wait_for_turn();
  deadline_.reset();
  if (news.failure) return {.whole = failure_response(*news.failure)};
  if (job_->request.stream) {
    stream_.emplace(job_, std::move(news), std::time(nullptr));
    std::string text = stream_->take();
    const HttpResponse head = {.type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}};
    return {.head = head, .piece = std::move(text), .last = stream_->ended()};
  }
  if (!news.result) return {};
  return {.whole = json_response(completion_json(job_->id, job_->request, *news.result, std::time(nullptr)))};
}

LateAnswer::Part CompletionAnswer::wait_for_turn() {
  if (!deadline_ || Job::Clock::now() < *deadline_) return {.again = deadline_};
  deadline_.reset();
  if (!queue_.withdraw(*job_, JobQueue::IfRunning::kKeep)) return {};  // its turn has come just now
  return {.whole = failure_response({.status = 503,
                                     .message = str("the request waited for ", queue_seconds_, " s (--queue-time)"),
                                     .code = "queue_timeout",
                                     .retry_after_s = metrics_.retry_after_s()})};
}

void CompletionAnswer::abandon() noexcept {
  job_->feed.call_with_news({});
  queue_.withdraw(*job_, JobQueue::IfRunning::kCancel);
}

}  // namespace headrace
