// An OpenAI-compatible HTTP server in front of one engine. Its threads parse requests and put them into
// the queue; a Worker answers them. Borrows the engine, of which it uses what any thread may use. Thread: one.
#pragma once

#include <memory>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/server/job_queue.h"
#include "runtime/server/metrics.h"
#include "runtime/server/server_options.h"

namespace headrace {

class Server {
 public:
  // Listens from here on; requests wait until a worker runs. Throws Error: the address is not to be had, is open to
  // other machines and there is no key, or the key file is wrong (kUsage, kBadInput).
  Server(const Engine& engine, const ServerOptions& options, JobQueue& queue, ServerMetrics& metrics);
  ~Server();

  std::string address() const;  // "http://127.0.0.1:8080"
  int port() const;
  void set_ready();  // the weights are loaded: /health says so
  // After the queue has been closed: lets the answers at work end, and closes all connections.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
