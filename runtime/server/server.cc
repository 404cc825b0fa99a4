#include "runtime/server/server.h"

#include "runtime/http/http_server.h"
#include "runtime/server/routes.h"

namespace headrace {
namespace {

constexpr size_t kSpareConnections = 256;  // beside the ones whose requests are queued or run
constexpr uint64_t kBodiesAtATime = 4;     // of the longest ones

std::chrono::milliseconds to_ms(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

HttpLimits limits_of(const ServerOptions& options) {
  HttpLimits limits;
  limits.read = limits.write = to_ms(options.read_seconds);
  limits.body_bytes = options.body_bytes;
  limits.all_body_bytes = kBodiesAtATime * options.body_bytes;
  limits.connections = static_cast<size_t>(options.queue) + 1 + kSpareConnections;
  return limits;
}

}  // namespace

struct Server::Impl {
  const ServerOptions options;
  Routes routes;
  HttpServer http;  // the last: its threads use the rest

  Impl(const Engine& engine, const ServerOptions& o, JobQueue& queue, ServerMetrics& metrics)
      : options(o),
        routes(engine, options, queue, metrics),
        http(options.host, options.port, limits_of(options), routes.handlers()) {}
};

Server::Server(const Engine& engine, const ServerOptions& options, JobQueue& queue, ServerMetrics& metrics)
    : impl_(std::make_unique<Impl>(engine, options, queue, metrics)) {}
Server::~Server() = default;

std::string Server::address() const {
  const std::string& host = impl_->options.host;
  return str("http://", host.find(':') == std::string::npos ? host : "[" + host + "]", ":", port());
}
int Server::port() const { return impl_->http.port(); }
void Server::set_ready() { impl_->routes.set_ready(); }
void Server::finish() { impl_->http.finish(); }

}  // namespace headrace
