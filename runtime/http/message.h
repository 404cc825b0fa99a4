// Requests and answers of HTTP as values, and what a server asks of the code behind it. Plain values; any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace {

struct HttpHeader {
  std::string name, value;
};

struct HttpRequest {
  std::string method, path;  // path: decoded, without the query
  std::vector<HttpHeader> headers{};
  std::string body{};

  std::string_view header(std::string_view name) const;  // the first of that name; empty: absent
};

struct HttpResponse {
  int status = 200;
  std::string type{}, body{};
  std::vector<HttpHeader> headers{};
};

// An answer that is not there yet, or that comes in pieces. Its functions are called on the server's I/O thread.
class LateAnswer {
 public:
  struct Part {
    std::optional<HttpResponse> whole{};  // all of it, or:
    std::optional<HttpResponse> head{};   // with the first piece, and no body
    std::string piece{};
    bool last = false;                                             // piece
    std::optional<std::chrono::steady_clock::time_point> again{};  // when take() is to be called in any case
  };

  virtual ~LateAnswer() = default;
  // `wake`: to be called, on any thread, when take() has something new. It may be called while the server lives.
  virtual void begin(std::function<void()> wake) = 0;
  // What has come since the last call: maybe nothing. Not called while the client has not taken the last piece.
  virtual Part take() = 0;
  // Instead of further calls of take(): the client has left, or the server ends.
  virtual void abandon() noexcept = 0;
};

using HttpAnswer = std::variant<HttpResponse, std::shared_ptr<LateAnswer>>;

// What a server answers by itself.
enum class HttpFault {
  kMalformed,   // 400: no HTTP, two lengths of the body, a header that is too long
  kIncomplete,  // 400: the request did not arrive whole, or in time
  kTooLong,     // 413: the body
  kBusy,        // 503: too many connections or requests
  kBroken,      // 500: the handler threw an exception
};

struct HttpHandlers {
  // A header has arrived. An answer: the body is not read. None: at_end() answers. On the I/O thread, so at once.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> at_header;
  // The whole request has arrived. On one of a few threads that are there for it.
  std::function<HttpAnswer(const HttpRequest&)> at_end;
  // On the I/O thread.
  std::function<HttpResponse(HttpFault)> at_fault;
  // Every answer before it is sent, on the I/O thread. Status 499: the client left before it had one.
  std::function<void(HttpResponse&)> on_response;
};

// The status line and the header of an answer, with `framing` as its last lines: "Content-Length: 5\r\n".
std::string response_head(const HttpResponse& response, std::string_view framing);

}  // namespace headrace
