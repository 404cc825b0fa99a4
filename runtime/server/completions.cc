#include "runtime/server/completions.h"

#include <sys/random.h>

#include <array>
#include <utility>
#include <vector>

#include "runtime/requests/prompt.h"
#include "runtime/server/completion_answer.h"
#include "runtime/server/json_response.h"

namespace headrace {
namespace {

std::string random_id() {
  std::array<unsigned char, 12> bytes{};
  CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id;
  for (const unsigned char byte : bytes) {
    id += kDigits[byte >> 4];
    id += kDigits[byte & 15];
  }
  return id;
}

}  // namespace

HttpAnswer Completions::answer(RequestKind kind, const std::string& body) {
  RequestMemory::Share memory;
  const FileRules files = memory_.file_rules(body);
  if (const std::optional<Failure> refused = memory_.take(body.size() + files.text_bytes, &memory))
    return failure_response(*refused);
  std::shared_ptr<Job> job = make_job(kind, body, files);
  memory.keep(body.size() + job->prompt.size() * sizeof(int32_t));
  job->memory = std::move(memory);
  switch (queue_.push(job)) {
    case JobQueue::Push::kClosed:
      return failure_response(server_stops());
    case JobQueue::Push::kFull:
      return failure_response({.status = 429,
                               .message = str("all ", options_.queue, " places in the queue are taken"),
                               .type = "rate_limit_error",
                               .code = "queue_full",
                               .retry_after_s = metrics_.retry_after_s()});
    case JobQueue::Push::kQueued:
      break;
  }
  return std::make_shared<CompletionAnswer>(std::move(job), options_.queue_seconds, queue_, metrics_);
}

std::shared_ptr<Job> Completions::make_job(RequestKind kind, const std::string& body, const FileRules& files) const {
  Request request = parse_request(body, kind, "request", files);
  const PromptForm form = options_.use_chat_template ? PromptForm::kByTemplate : PromptForm::kPlain;
  std::vector<int32_t> ids = take_prompt(engine_, form, "request", &request);
  engine_.check_prompt(ids);
  return std::make_shared<Job>(random_id(), std::move(request), std::move(ids));
}

}  // namespace headrace
