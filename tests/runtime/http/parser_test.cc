// RequestParser by itself: what is one request, and what is none.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/http/request_parser.h"

namespace headrace {
namespace {

using State = RequestParser::State;

// The state after all of `text`, given in pieces of `size` bytes as a connection gives them.
State parse(const std::string& text, size_t size, RequestParser& parser) {
  std::string held;
  State state = State::kNeedsMore;
  for (size_t at = 0; at < text.size(); at += size) {
    held += text.substr(at, size);
    while (!held.empty()) {
      size_t used = 0;
      state = parser.feed(held, &used);
      held.erase(0, used);
      if (state == State::kMalformed || state == State::kTooLong || state == State::kDone) return state;
      if (state == State::kHeader && parser.done()) return State::kDone;
      if (used == 0 && held.size() >= kMaxHeaderBytes) return State::kMalformed;  // as its buffer is full
      if (used == 0) break;
    }
  }
  return state;
}

State parsed(const std::string& text, HttpRequest* request = nullptr) {
  RequestParser whole(1000), bytewise(1000);
  const State state = parse(text, text.size(), whole);
  EXPECT_EQ(parse(text, 1, bytewise), state) << text.substr(0, 100);
  EXPECT_EQ(bytewise.request().body, whole.request().body) << text;
  if (request != nullptr) *request = whole.request();
  return state;
}

TEST(RequestParser, ReadsARequest) {
  HttpRequest request;
  EXPECT_EQ(parsed("POST /a%20b%2?c=d HTTP/1.1\r\nHost: x\r\nX-Y:  z \r\nContent-Length: 3\r\n\r\nabc", &request),
            State::kDone);
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/a b%2");
  EXPECT_EQ(request.header("x-y"), "z");
  EXPECT_EQ(request.header("none"), "");
  EXPECT_EQ(request.body, "abc");
  EXPECT_EQ(
      parsed("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nHost: y\r\n\r\n",
             &request),
      State::kDone);
  EXPECT_EQ(request.body, "abcde");
  EXPECT_EQ(request.header("Host"), "");                       // a trailer is no header
  EXPECT_EQ(parsed("POST / HTTP/1.0\r\n\r\n"), State::kDone);  // without a length there is no body
}

TEST(RequestParser, RefusesWhatCouldBeReadInTwoWays) {
  const std::vector<std::string> headers = {
      "Content-Length: 3\r\nContent-Length: 4\r\n",
      "Content-Length: 3, 4\r\n",
      "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: gzip, chunked\r\n",
      "Transfer-Encoding: identity\r\nContent-Length: 3\r\n",
      "Transfer-Encoding: xchunked\r\n",
      "Content-Length: -1\r\n",
      "Content-Length: +3\r\n",
      "Content-Length: 0x3\r\n",
      "Content-Length: 99999999999999999999\r\n",
      "Content-Length:\r\n",
      "Content-Length : 3\r\n",
      "no colon\r\n",
      ": empty\r\n",
  };
  for (const std::string& header : headers) {
    EXPECT_EQ(parsed("POST / HTTP/1.1\r\n" + header + "\r\nabc"), State::kMalformed) << header;
  }
  EXPECT_EQ(parsed("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), State::kMalformed);
}

TEST(RequestParser, RefusesGarbage) {
  for (const char* const text :
       {"\x16\x03\x01\x02", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\r\n\r\n",
        "GET  / HTTP/1.1\r\n\r\n", "GET /\x01 HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\na: b\x01\r\n\r\n"}) {
    EXPECT_EQ(parsed(text), State::kMalformed) << text;
  }
  for (const char* const chunk : {"g\r\n", "-1\r\nx\r\n", "fffffffffffffffff\r\n", "1\r\nabc\r\n"}) {
    const State state = parsed(std::string("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n") + chunk);
    EXPECT_TRUE(state == State::kMalformed || state == State::kTooLong) << chunk;
  }
}

TEST(RequestParser, BoundsWhatItKeeps) {
  EXPECT_EQ(parsed("POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"), State::kHeader);
  EXPECT_EQ(parsed("POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"), State::kTooLong);
  const std::string chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(parsed(chunked + "3e8\r\n" + std::string(1000, 'a') + "\r\n1\r\n"), State::kTooLong);
  EXPECT_EQ(parsed(chunked + "ffffffffffffffff\r\n"), State::kTooLong);
  std::string lines = "GET / HTTP/1.1\r\n", bytes = lines;
  for (size_t i = 0; i < kMaxHeaders + 2; ++i) lines += "a: b\r\n";
  EXPECT_EQ(parsed(lines + "\r\n"), State::kMalformed);
  while (bytes.size() <= kMaxHeaderBytes + 6000) bytes += "a: " + std::string(5000, 'b') + "\r\n";
  EXPECT_EQ(parsed(bytes + "\r\n"), State::kMalformed);
}

}  // namespace
}  // namespace headrace
