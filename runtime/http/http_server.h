// A server of HTTP/1.0 and 1.1. One thread serves all sockets, so no client can keep another from being served; a few
// threads run the handlers that need a whole request. Owns its sockets and threads. Thread: one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/http/message.h"

namespace headrace {

struct HttpLimits {
  std::chrono::milliseconds idle{5000};    // between two requests
  std::chrono::milliseconds read{30000};   // a whole request, from its first byte
  std::chrono::milliseconds write{30000};  // a piece of an answer that the client does not take
  std::chrono::milliseconds linger{1000};  // for the client to read an answer before all it sent was read
  uint64_t body_bytes = uint64_t{16} << 20;
  uint64_t all_body_bytes = uint64_t{64} << 20;  // of all requests that arrive or that at_end() reads
  // Beyond it, a new connection takes the place of the one that has waited longest for its client.
  size_t connections = 256;
  size_t handling = 64;  // requests that at_end() works on or that wait for it
};

class HttpServer {
 public:
  // Port 0: any free one. Answers from here on. Throws Error(kUsage) that names the address.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, HttpHandlers handlers);
  ~HttpServer();

  int port() const;
  // Closes idle connections and waits for answers under way, for a second at most; then all are closed. Waits for
  // handlers that run.
  void finish();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
