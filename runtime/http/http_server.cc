#include "runtime/http/http_server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "offload/host/start_thread.h"
#include "offload/host/thread_annotations.h"
#include "runtime/http/connection.h"

namespace headrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kHandlerThreads = 4;
constexpr std::chrono::milliseconds kFinish{1000}, kRetry{50};

// A handler that throws (memory) costs its own connection alone.
void run_until_stopped(boost::asio::io_context& context) {
  while (!context.stopped()) {
    try {
      context.run();
    } catch (...) {
    }
  }
}

[[noreturn]] void refuse_address(const std::string& host, int port, const std::string& why) {
  throw_error(ExitCode::kUsage, "--host, --port", str("cannot listen on ", host, " port ", port, ": ", why),
              "Give another --port; 0 takes a free one");
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const std::string& host, int port, const HttpLimits& limits, HttpHandlers handlers)
      : shared_{.limits = limits, .handlers = std::move(handlers)}, acceptor_(shared_.io), retry_(shared_.io) {
    listen(host, port);
    shared_.on_closed = [this] { note_closed(); };
    accept();
    io_thread_ = start_thread("the thread that serves connections", [this] { run_until_stopped(shared_.io); });
    try {
      handler_threads_ =
          start_threads(kHandlerThreads, "a thread of the server", [this](size_t) { run_until_stopped(shared_.work); });
    } catch (...) {
      finish();
      throw;
    }
  }
  ~Impl() { finish(); }

  int port() const { return port_; }

  void finish() {
    if (!io_thread_.joinable()) return;
    boost::asio::post(shared_.io, [this] { stop(); });
    {
      const MutexLock lock(mutex_);
      const auto deadline = std::chrono::steady_clock::now() + kFinish;
      while (!drained_ && ended_.wait_until(mutex_, deadline)) {
      }
    }
    shared_.io.stop();
    io_thread_.join();
    while (!shared_.connections.empty()) (*shared_.connections.begin())->close();
    shared_.work.stop();
    for (std::thread& thread : handler_threads_) thread.join();
  }

 private:
  void listen(const std::string& host, int port) {
    error_code error;
    tcp::resolver resolver(shared_.io);
    const auto found =
        resolver.resolve(host, std::to_string(port), tcp::resolver::passive | tcp::resolver::numeric_service, error);
    if (error) refuse_address(host, port, error.message());
    for (const auto& each : found) {
      if (listen(each.endpoint(), &error)) return;
    }
    refuse_address(host, port, error.message());
  }

  bool listen(const tcp::endpoint& endpoint, error_code* error) {
    error_code ignored;
    acceptor_.close(ignored);
    if (acceptor_.open(endpoint.protocol(), *error)) return false;
    acceptor_.set_option(tcp::acceptor::reuse_address(true), ignored);  // of a server that has just ended
    if (endpoint.protocol() == tcp::v6()) acceptor_.set_option(boost::asio::ip::v6_only(false), ignored);
    if (acceptor_.bind(endpoint, *error) || acceptor_.listen(tcp::acceptor::max_listen_connections, *error)) {
      return false;
    }
    port_ = acceptor_.local_endpoint(ignored).port();
    return true;
  }

  // On the I/O thread from here on.
  void accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (shared_.stopping) return;
      try {
        if (!error) welcome(std::move(socket));
      } catch (...) {  // no memory for another connection
      }
      if (!error) return accept();
      drop_one();  // it may be descriptors that are missing
      retry_.expires_after(kRetry);
      retry_.async_wait([this](const error_code& cancelled) {
        if (!cancelled && !shared_.stopping) accept();
      });
    });
  }

  void welcome(tcp::socket socket) {
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), shared_);
    const bool room = shared_.connections.size() < shared_.limits.connections || drop_one();
    shared_.connections.insert(connection);
    connection->start();
    if (!room) connection->refuse(HttpFault::kBusy);
  }

  // Closes the connection that has waited longest for its client. False: all clients wait for the server.
  bool drop_one() {
    std::shared_ptr<HttpConnection> longest;
    std::optional<HttpConnection::Clock::time_point> since;
    for (const auto& each : shared_.connections) {
      const auto its = each->waits_since();
      if (its && (!since || *its < *since)) {
        since = its;
        longest = each;
      }
    }
    if (longest) longest->close();
    return longest != nullptr;
  }

  void stop() {
    shared_.stopping = true;
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    const auto connections = shared_.connections;
    for (const auto& each : connections) each->stop();
    note_closed();
  }

  void note_closed() {
    if (!shared_.stopping || !shared_.connections.empty()) return;
    const MutexLock lock(mutex_);
    drained_ = true;
    ended_.notify_all();
  }

  HttpShared shared_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> keep_io_{shared_.io.get_executor()},
      keep_work_{shared_.work.get_executor()};
  tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  int port_ = 0;
  Mutex mutex_;
  CondVar ended_;
  bool drained_ GUARDED_BY(mutex_) = false;
  std::thread io_thread_;
  std::vector<std::thread> handler_threads_;
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, HttpHandlers handlers)
    : impl_(std::make_unique<Impl>(host, port, limits, std::move(handlers))) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->port(); }
void HttpServer::finish() { impl_->finish(); }

}  // namespace headrace
