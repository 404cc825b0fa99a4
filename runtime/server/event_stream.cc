#include "runtime/server/event_stream.h"

#include <utility>

namespace headrace {
EventStream::EventStream(std::shared_ptr<Job> job, News first, int64_t created)
    : job_(std::move(job)), answer_(open_answer_stream(job_->id, job_->request, created)), news_(std::move(first)) {}

std::string EventStream::take() {
  std::string out;
  if (ended_) return out;
  if (std::exchange(begun_, true)) {
    news_ = job_->feed.take();
  } else {
    out += answer_->begin();
  }
  if (news_.progress && job_->request.return_progress) out += answer_->progress(*news_.progress);
  out += answer_->add({.thinking = news_.thinking, .answer = news_.text}, news_.tokens);
  if (news_.failure) {
    out += answer_->fail({news_.failure->message, news_.failure->type, news_.failure->code});
  } else if (news_.result) {
    out += answer_->end(*news_.result);
  }
  ended_ = news_.failure || news_.result;
  return out;
}

}  // namespace headrace
