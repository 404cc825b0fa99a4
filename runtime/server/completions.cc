#include "runtime/server/completions.h"

#include <sys/random.h>

#include <ctime>
#include <utility>
#include <vector>

#include "runtime/server/event_stream.h"
#include "runtime/server/http_answers.h"
#include "runtime/server/http_server.h"

namespace headrace {
namespace {

using Clock = Job::Clock;
constexpr Clock::time_point kNever = Clock::time_point::max();

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

void Completions::answer(RequestKind kind, const std::string& body, httplib::Response& response) {
  std::shared_ptr<Job> job;
  try {
    job = make_job(kind, body);
  } catch (const Error& error) {
    return send_failure(failure_of(error), response);
  }
  switch (queue_.push(job)) {
    case JobQueue::Push::kClosed:
      return send_failure(server_stops(), response);
    case JobQueue::Push::kFull:
      return send_failure({.status = 429,
                           .message = str("all ", options_.queue, " places in the queue are taken"),
                           .type = "rate_limit_error",
                           .code = "queue_full",
                           .retry_after_s = metrics_.retry_after_s()},
                          response);
    case JobQueue::Push::kQueued:
      break;
  }
  News news = wait_for_turn(*job);
  if (news.failure) return send_failure(*news.failure, response);
  if (job->request.stream) {
    send_stream(job, std::move(news), response);
  } else {
    send_whole(*job, std::move(news), response);
  }
}

std::shared_ptr<Job> Completions::make_job(RequestKind kind, const std::string& body) const {
  Request request = parse_request(body, kind, "request");
  check_document_size("request", request.text().size(), engine_.document_limit());
  std::vector<int32_t> ids = kind == RequestKind::kChat && options_.use_chat_template
                                 ? engine_.encode(request.messages)
                                 : engine_.encode_plain(request.text());
  engine_.check_prompt(ids);
  return std::make_shared<Job>(random_id(), std::move(request), std::move(ids));
}

News Completions::wait_for_turn(Job& job) {
  const auto most = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.queue_seconds));
  Clock::time_point deadline = job.arrived + most;
  for (;;) {
    const Connection::Wake wake = HttpServer::connection().wait_for(job.feed.descriptor(), deadline);
    if (wake == Connection::Wake::kNews) return job.feed.take();
    const bool waited = queue_.withdraw(
        job, wake == Connection::Wake::kGone ? JobQueue::IfRunning::kCancel : JobQueue::IfRunning::kKeep);
    if (wake == Connection::Wake::kGone) return {.failure = client_left()};
    if (waited) {
      return {.failure = Failure{.status = 503,
                                 .message = str("the request waited for ", options_.queue_seconds, " s (--queue-time)"),
                                 .code = "queue_timeout",
                                 .retry_after_s = metrics_.retry_after_s()}};
    }
    deadline = kNever;  // its turn has come just now
  }
}

void Completions::send_whole(Job& job, News news, httplib::Response& response) {
  while (!news.result && !news.failure) {
    if (HttpServer::connection().wait_for(job.feed.descriptor(), kNever) == Connection::Wake::kGone) {
      queue_.withdraw(job, JobQueue::IfRunning::kCancel);
      return send_failure(client_left(), response);
    }
    news = job.feed.take();
  }
  if (news.failure) return send_failure(*news.failure, response);
  response.set_content(completion_json(job.id, job.request, *news.result, std::time(nullptr)), kJsonType);
}

void Completions::send_stream(const std::shared_ptr<Job>& job, News news, httplib::Response& response) {
  response.set_header("Cache-Control", "no-cache");
  const auto stream = std::make_shared<EventStream>(job, std::move(news), std::time(nullptr));
  response.set_chunked_content_provider(
      "text/event-stream",
      [stream, &connection = HttpServer::connection()](size_t, httplib::DataSink& sink) {
        for (std::string text = stream->take(); !text.empty() || !stream->ended(); text = stream->take()) {
          if (!text.empty() && !sink.write(text.data(), text.size())) return false;
          if (stream->ended()) break;
          if (connection.wait_for(stream->descriptor(), kNever) == Connection::Wake::kGone) return false;
        }
        sink.done();
        return true;
      },
      [this, job](bool whole) {
        if (!whole) queue_.withdraw(*job, JobQueue::IfRunning::kCancel);
      });
}

}  // namespace headrace
