// What a server answers at which address, and to whom. Borrows everything but the keys. Thread: any.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/http/message.h"
#include "runtime/server/completions.h"
#include "runtime/server/job_queue.h"
#include "runtime/server/metrics.h"
#include "runtime/server/model_answers.h"
#include "runtime/server/request_memory.h"
#include "runtime/server/server_options.h"

namespace headrace {

class Routes {
 public:
  Routes(const Engine& engine, const ServerOptions& options, JobQueue& queue, ServerMetrics& metrics);

  HttpHandlers handlers();  // which use this
  void set_ready() { ready_ = true; }

 private:
  std::optional<HttpResponse> at_header(const HttpRequest& request) const;
  HttpAnswer at_end(const HttpRequest& request);
  HttpAnswer post(const HttpRequest& request);
  HttpResponse at_fault(HttpFault fault) const;
  void on_response(HttpResponse& response) const;

  std::optional<HttpResponse> read(const std::string& path) const;  // none: no such address
  HttpResponse health() const;

  const ServerOptions& options_;
  const std::vector<std::string> keys_;
  JobQueue& queue_;
  ServerMetrics& metrics_;
  RequestMemory memory_;
  const ModelAnswers model_;
  Completions completions_;
  std::atomic<bool> ready_{false};
};

}  // namespace headrace
