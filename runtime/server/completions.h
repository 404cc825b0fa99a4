// The two kinds of completion as HTTP handlers: parse, queue, and answer as a whole or as server-sent events when the
// engine has something. Borrows everything. Thread: any.
#pragma once

#include <memory>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/http/message.h"
#include "runtime/server/job_queue.h"
#include "runtime/server/metrics.h"
#include "runtime/server/request_memory.h"
#include "runtime/server/server_options.h"

namespace headrace {

class Completions {
 public:
  Completions(const Engine& engine, const ServerOptions& options, JobQueue& queue, ServerMetrics& metrics,
              RequestMemory& memory)
      : engine_(engine), options_(options), queue_(queue), metrics_(metrics), memory_(memory) {}

  HttpAnswer answer(RequestKind kind, const std::string& body);

 private:
  std::shared_ptr<Job> make_job(RequestKind kind, const std::string& body, const FileRules& files) const;

  const Engine& engine_;
  const ServerOptions& options_;
  JobQueue& queue_;
  ServerMetrics& metrics_;
  RequestMemory& memory_;
};

}  // namespace headrace
