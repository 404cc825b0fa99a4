// httplib's server with connections of ours (connection.h), a fixed number of threads, and an end that lets answers
// finish. Owns the listening socket and its threads. Thread: one; handlers run on the connections' threads.
#pragma once

#include <httplib.h>

#include <memory>
#include <string>
#include <thread>

#include "offload/host/thread_annotations.h"
#include "runtime/server/connection.h"

namespace headrace {

class HttpServer : public httplib::Server {
 public:
  // `threads`: connections that are served at a time, idle ones included; others wait to be accepted.
  HttpServer(const ConnectionLimits& limits, size_t threads);
  ~HttpServer() override;

  // Port 0: any free one. Returns the port. Throws Error(kUsage) that names the address.
  int bind(const std::string& host, int port);
  void start();  // after bind(): accepts connections on a thread of its own
  // Closes idle connections and waits for those at work, a few seconds at most; then all are closed.
  void finish();

  static Connection& connection();  // of the handler that calls it

 private:
  bool process_and_close_socket(socket_t socket) override;
  void serve(Connection& connection);
  template <typename Setup>
  bool process(Connection& connection, bool& closed, const Setup& set_up);

  const ConnectionLimits limits_;
  const int stopping_;  // an eventfd
  std::unique_ptr<httplib::TaskQueue> connection_threads_;
  std::thread acceptor_;
  Mutex mutex_;
  CondVar idle_;
  int at_work_ GUARDED_BY(mutex_) = 0;
};

}  // namespace headrace
