// An HttpServer on loopback whose handlers tell what they were given, and clients of it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "offload/host/thread_annotations.h"
#include "runtime/http/http_server.h"
#include "tests/support/http_client.h"
#include "tests/support/raw_socket.h"

namespace headrace {

// An answer whose pieces a test gives; a copy refers to the same one.
class TestAnswer final : public LateAnswer {
 public:
  void begin(std::function<void()> wake) override;
  Part take() override;
  void abandon() noexcept override { abandoned = true; }

  void give(Part part);  // once begun
  std::atomic<bool> begun{false}, abandoned{false};
  std::atomic<size_t> taken{0};  // bytes

 private:
  Mutex mutex_;
  std::function<void()> wake_ GUARDED_BY(mutex_);
  std::vector<Part> parts_ GUARDED_BY(mutex_);
};

// GET /health and GET /page (1 MiB) are answered from the header, any other GET with 404. POST /late answers with
// late(), POST /throw throws, POST /hold waits for released(), any other POST answers with the method, the path and the
// body's length. PUT is refused before its body is read.
class HttpTest : public ::testing::Test {
 protected:
  ~HttpTest() override;

  void start(const HttpLimits& limits = {});
  void stop() { server_.reset(); }
  int port() const { return server_->port(); }
  HttpServer& server() { return *server_; }
  RawSocket send(const std::string& text) const { return RawSocket(port(), text); }
  std::string answer_to(const std::string& text) const { return send(text).read_all(); }
  RawSocket ask_late(const std::string& text, int receive_bytes = 0);  // until late() has begun
  int health() const { return HttpClient(port()).get("/health").status; }

  const std::shared_ptr<TestAnswer>& late() { return late_; }
  void release() { released_ = true; }
  std::atomic<int> at_header_{0}, holding_{0}, left_{0};              // left_: answers with status 499
  static void wait_until(const std::function<bool()>& true_at_last);  // fails after 20 s

 private:
  std::optional<HttpResponse> at_header(const HttpRequest& request);
  HttpAnswer at_end(const HttpRequest& request);

  const std::shared_ptr<TestAnswer> late_ = std::make_shared<TestAnswer>();
  std::atomic<bool> released_{false};
  std::unique_ptr<HttpServer> server_;
};

double seconds_of(const std::function<void()>& work);
size_t count_of(const std::string& text, const std::string& part);

}  // namespace headrace
