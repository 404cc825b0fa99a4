#include "runtime/server/http_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "offload/host/start_thread.h"
#include "runtime/server/eventfd.h"

namespace headrace {
namespace {

constexpr size_t kMaxUnserved = 64;  // accepted connections that no thread serves yet
constexpr std::chrono::seconds kFinish{5};

thread_local Connection* current = nullptr;

// Accepting waits while too many connections are unserved: they are left to the system's own queue.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(size_t count)
      : threads_(start_threads(count, "a thread of the server", [this](size_t) { run(); })) {}
  ~ConnectionThreads() override { shutdown(); }

  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));  // void, in httplib 0.18 bool
  Enqueued enqueue(std::function<void()> serve) override {
    const MutexLock lock(mutex_);
    while (unserved_.size() >= kMaxUnserved) room_.wait(mutex_);
    unserved_.push_back(std::move(serve));
    came_.notify_one();
    return Enqueued(true);
  }

  void shutdown() override {
    {
      const MutexLock lock(mutex_);
      ends_ = true;
      came_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> serve;
      {
        const MutexLock lock(mutex_);
        while (unserved_.empty() && !ends_) came_.wait(mutex_);
        if (unserved_.empty()) return;
        serve = std::move(unserved_.front());
        unserved_.pop_front();
        room_.notify_one();
      }
      serve();
    }
  }

  Mutex mutex_;
  CondVar came_, room_;
  std::deque<std::function<void()>> unserved_ GUARDED_BY(mutex_);
  bool ends_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // the last: they use the rest
};

// The library's own choice would let a second server take the same port.
void set_reuse(socket_t socket) {
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
}

}  // namespace

HttpServer::HttpServer(const ConnectionLimits& limits, size_t threads)
    : limits_(limits), stopping_(open_eventfd()), connection_threads_(std::make_unique<ConnectionThreads>(threads)) {
  set_tcp_nodelay(true);
  set_socket_options(set_reuse);
  new_task_queue = [this] { return connection_threads_.release(); };
}

HttpServer::~HttpServer() {
  finish();
  ::close(stopping_);
}

int HttpServer::bind(const std::string& host, int port) {
  errno = 0;
  const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
  if (bound < 0) {
    throw_error(ExitCode::kUsage, "--host, --port",
                str("cannot listen on ", host, " port ", port, errno != 0 ? str(": ", std::strerror(errno)) : ""),
                "Give another --port; 0 takes a free one");
  }
  return bound;
}

void HttpServer::start() {
  acceptor_ = start_thread("the thread that accepts connections", [this] { listen_after_bind(); });
  while (!is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // stop() needs it
}

void HttpServer::finish() {
  if (!acceptor_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stopping_, &one, sizeof one);
  {
    const MutexLock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kFinish;
    while (at_work_ > 0 && idle_.wait_until(mutex_, deadline)) {
    }
  }
  stop();
  acceptor_.join();
}

Connection& HttpServer::connection() {
  CHECK(current != nullptr);
  return *current;
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  Connection connection(socket, stopping_, limits_);
  current = &connection;
  while (!connection.closes() && connection.next_request()) serve(connection);
  current = nullptr;
  connection.linger();
  ::close(socket);
  return true;
}

// httplib 0.18 has more parameters than 0.11.
template <typename Setup>
bool HttpServer::process(Connection& connection, bool& closed, const Setup& set_up) {
  if constexpr (requires { process_request(connection, false, closed, set_up); }) {
    return process_request(connection, false, closed, set_up);
  } else {
    return process_request(connection, "", 0, "", 0, false, closed, set_up);
  }
}

void HttpServer::serve(Connection& connection) {
  {
    const MutexLock lock(mutex_);
    ++at_work_;
  }
  bool closed = false;
  const bool answered = process(connection, closed, [&](httplib::Request& request) {
    connection.end_of_header();
    request.headers.erase("Accept-Encoding");  // compressing an answer costs more than sending it
  });
  if (!answered || closed || connection.in_header()) connection.close_after_answer();
  const MutexLock lock(mutex_);
  if (--at_work_ == 0) idle_.notify_all();
}

}  // namespace headrace
