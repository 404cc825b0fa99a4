#include "tests/runtime/http/http_fixture.h"

#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace headrace {

void TestAnswer::begin(std::function<void()> wake) {
  {
    const MutexLock lock(mutex_);
    wake_ = std::move(wake);
  }
  begun = true;
}

LateAnswer::Part TestAnswer::take() {
  const MutexLock lock(mutex_);
  if (parts_.empty()) return {};
  Part part = std::move(parts_.front());
  parts_.erase(parts_.begin());
  taken += part.piece.size();
  return part;
}

void TestAnswer::give(Part part) {
  const MutexLock lock(mutex_);
  parts_.push_back(std::move(part));
  if (wake_) wake_();
}

HttpTest::~HttpTest() {
  release();
  stop();
}

void HttpTest::start(const HttpLimits& limits) {
  stop();
  server_ = std::make_unique<HttpServer>(
      "127.0.0.1", 0, limits,
      HttpHandlers{.at_header = [this](const HttpRequest& request) { return at_header(request); },
                   .at_end = [this](const HttpRequest& request) { return at_end(request); },
                   .at_fault =
                       [](HttpFault fault) {
                         constexpr int kStatus[] = {400, 400, 413, 503, 500};
                         return HttpResponse{.status = kStatus[static_cast<size_t>(fault)]};
                       },
                   .on_response =
                       [this](HttpResponse& response) {
                         if (response.status == 499) ++left_;
                       }});
}

RawSocket HttpTest::ask_late(const std::string& text, int receive_bytes) {
  late_->begun = false;
  RawSocket socket(port(), text, receive_bytes);
  wait_until([this] { return late_->begun.load(); });
  return socket;
}

std::optional<HttpResponse> HttpTest::at_header(const HttpRequest& request) {
  ++at_header_;
  if (request.path == "/throw-early") throw std::bad_alloc();
  if (request.method == "POST") return std::nullopt;
  if (request.method == "PUT") return HttpResponse{.status = 404};
  if (request.path == "/health") return HttpResponse{.type = "text/plain", .body = "well"};
  if (request.path == "/page") return HttpResponse{.body = std::string(1 << 20, 'p')};
  return HttpResponse{.status = 404};
}

HttpAnswer HttpTest::at_end(const HttpRequest& request) {
  if (request.path == "/late") return late_;
  if (request.path == "/throw") throw std::bad_alloc();
  if (request.path == "/throw-odd") throw 7;
  if (request.path == "/hold") {
    ++holding_;
    while (!released_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return HttpResponse{.body = str(request.method, " ", request.path, " ", request.body.size(), ";")};
}

void HttpTest::wait_until(const std::function<bool()>& true_at_last) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!true_at_last()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

double seconds_of(const std::function<void()>& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace headrace
