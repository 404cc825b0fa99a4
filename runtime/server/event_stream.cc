#include "runtime/server/event_stream.h"

#include <utility>

namespace headrace {
namespace {

std::string event(const std::string& data) { return "data: " + data + "\n\n"; }

}  // namespace

EventStream::EventStream(std::shared_ptr<Job> job, News first, int64_t created)
    : job_(std::move(job)), pieces_(job_->id, job_->request, created), news_(std::move(first)) {}

std::string EventStream::take() {
  std::string out;
  if (ended_) return out;
  if (std::exchange(begun_, true)) {
    news_ = job_->feed.take();
  } else if (job_->request.kind == RequestKind::kChat) {
    out += event(pieces_.role());
  }
  if (news_.progress && job_->request.return_progress) out += event(pieces_.progress(*news_.progress));
  if (!news_.thinking.empty()) out += event(pieces_.thinking(news_.thinking));
  if (!news_.text.empty() || !news_.tokens.empty()) out += event(pieces_.text(news_.text, news_.tokens));
  if (news_.failure) {
    out += event(openai_error_json(news_.failure->message, news_.failure->type, news_.failure->code));
  } else if (news_.result) {
    for (const std::string& piece : pieces_.end(*news_.result)) out += event(piece);
  }
  ended_ = news_.failure || news_.result;
  if (ended_) out += event("[DONE]");
  return out;
}

}  // namespace headrace
