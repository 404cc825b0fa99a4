// The two kinds of completion as HTTP handlers: parse, queue, wait, and answer as a whole or as server-sent events.
// Borrows everything. Thread: any; a handler waits on its connection's thread.
#pragma once

#include <httplib.h>

#include <memory>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/server/job_queue.h"
#include "runtime/server/metrics.h"
#include "runtime/server/server_options.h"

namespace headrace {

class Completions {
 public:
  Completions(const Engine& engine, const ServerOptions& options, JobQueue& queue, ServerMetrics& metrics)
      : engine_(engine), options_(options), queue_(queue), metrics_(metrics) {}

  void answer(RequestKind kind, const std::string& body, httplib::Response& response);

 private:
  std::shared_ptr<Job> make_job(RequestKind kind, const std::string& body) const;
  // Until the engine has begun, or the request has ended before that. News of a failure: refused, or not in time.
  News wait_for_turn(Job& job);
  void send_whole(Job& job, News news, httplib::Response& response);
  void send_stream(const std::shared_ptr<Job>& job, News news, httplib::Response& response);

  const Engine& engine_;
  const ServerOptions& options_;
  JobQueue& queue_;
  ServerMetrics& metrics_;
};

}  // namespace headrace
