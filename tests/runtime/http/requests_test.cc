// HttpServer: requests and their answers on one connection, and what it does not read.
#include <sys/resource.h>

#include <future>

#include "tests/runtime/http/http_fixture.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

const std::string kClose = "Connection: close\r\n";

std::string request(const std::string& line, const std::string& header = "", const std::string& body = "") {
  return line + " HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n" + body;
}

std::string post(const std::string& path, const std::string& body, const std::string& header = "") {
  return request("POST " + path, str("Content-Length: ", body.size(), "\r\n", header), body);
}

long most_resident_kib() {
  rusage used = {};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

TEST_F(HttpTest, OneConnectionManyRequests) {
  start();
  const std::string text = answer_to(request("GET /health") + post("/a", "12345") + request("HEAD /health") +
                                     request("POST /b", "Transfer-Encoding: chunked\r\n", "2\r\nab\r\n0\r\n\r\n") +
                                     post("/c", "", kClose) + request("GET /health"));
  EXPECT_EQ(count_of(text, "HTTP/1.1 200 OK"), 5u) << text;  // none after the one that closes
  EXPECT_LT(text.find("\r\n\r\nwell"), text.find("POST /a 5;"));
  EXPECT_LT(text.find("POST /a 5;"), text.find("POST /b 2;"));
  EXPECT_LT(text.find("POST /b 2;"), text.find("POST /c 0;"));
  EXPECT_EQ(count_of(text, "well"), 1u);  // HEAD has the length alone
  EXPECT_EQ(count_of(text, "Content-Length: 4\r\n"), 2u);
  EXPECT_EQ(count_of(text, "Connection: close\r\n"), 1u);
}

TEST_F(HttpTest, ManyPipelinedRequests) {
  start();
  std::string text;
  for (int i = 0; i < 1000; ++i) text += i % 2 == 0 ? request("GET /health") : post("/x", std::string(200, 'b'));
  const RawSocket socket = send("");
  auto sent = std::async(std::launch::async, [&] { return socket.send(text + request("GET /health", kClose)); });
  const std::string answers = socket.read_all();
  EXPECT_TRUE(sent.get());
  EXPECT_EQ(count_of(answers, "HTTP/1.1 200 OK"), 1001u);
  EXPECT_EQ(count_of(answers, "POST /x 200;"), 500u);
}

TEST_F(HttpTest, Http10ClosesUnlessAskedNotTo) {
  start();
  EXPECT_EQ(count_of(answer_to("GET /health HTTP/1.0\r\n\r\nGET /health HTTP/1.0\r\n\r\n"), "200 OK"), 1u);
  const std::string kept =
      answer_to("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(count_of(kept, "200 OK"), 2u);
  EXPECT_EQ(count_of(kept, "Connection: keep-alive\r\n"), 1u);
}

TEST_F(HttpTest, AClientMayAskWhetherToSendItsBody) {
  start();
  const RawSocket socket = send(request("POST /a", "Content-Length: 2\r\nExpect: 100-continue\r\n" + kClose));
  EXPECT_EQ(socket.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_TRUE(socket.send("ab"));
  EXPECT_NE(socket.read_all().find("POST /a 2;"), std::string::npos);
  const std::string refused = answer_to(request("POST /a", "Content-Length: 99999999\r\nExpect: 100-continue\r\n"));
  EXPECT_EQ(refused.find("HTTP/1.1 413"), 0u) << refused;
}

// A body that never ends is refused, and nothing of it is kept.
TEST_F(HttpTest, AnEndlessBodyIsNotRead) {
  start({.linger = std::chrono::milliseconds(30), .body_bytes = 100000});
  const std::string chunk = "10000\r\n" + std::string(65536, 'a') + "\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n",
                    form = "Content-Type: multipart/form-data; boundary=x\r\n";
  struct Case {
    std::string head, piece, status;
  };
  const std::vector<Case> cases = {
      {request("POST /a", chunked), chunk, "413"},
      {request("POST /a", chunked + form), chunk, "413"},
      {request("POST /a", "Content-Length: 1099511627776\r\n"), chunk, "413"},
      {request("PUT /a", chunked), chunk, "404"},
      {request("PUT /a", "Content-Length: 99999\r\n"), chunk, "404"},
      {request("GET /nope", chunked), chunk, "404"},
      {request("GET /health", chunked), chunk, "200"},
      {request("DELETE /", "Content-Length: 1099511627776\r\n"), chunk, "413"},
      {"POST /a HTTP/1.0\r\n\r\n", chunk, "200"},  // whose body is empty, because it has no length
      {"PUT /a HTTP/1.0\r\n\r\n", chunk, "404"},
      {request("POST /a", chunked), "1;" + std::string(65536, 'x'), "400"},            // an extension of a chunk
      {request("POST /a", chunked, "0\r\n"), "a: " + std::string(65536, 'x'), "400"},  // a trailer
      {"", std::string(65536, 'G'), "400"},
      {request("GET /health", "a: b"), std::string(65536, 'x'), "400"},
  };
  const long before = most_resident_kib();
  for (const Case& each : cases) {
    const RawSocket socket = send(each.head);
    EXPECT_LT(seconds_of([&] {
                while (socket.send(each.piece)) continue;
              }),
              5)
        << each.head;
    EXPECT_EQ(health(), 200);
  }
  if (!testing::kSanitized) {
    EXPECT_LT(most_resident_kib() - before, 4096);
  }
  for (const Case& each : cases) {  // a client that stops in time reads why
    const RawSocket socket = send(each.head + each.piece);
    socket.send(each.piece);
    EXPECT_EQ(socket.read_all().substr(9, 3), each.status) << each.head;
  }
}

TEST_F(HttpTest, TwoLengthsAreRefused) {
  start();
  for (const char* const second : {"Content-Length: 50\r\n", "Transfer-Encoding: chunked\r\n"}) {
    const std::string text = answer_to(post("/a", "abc", second) + request("GET /health"));
    EXPECT_EQ(text.find("HTTP/1.1 400 Bad Request"), 0u) << text;
    EXPECT_EQ(count_of(text, "HTTP/1.1"), 1u) << text;
  }
}

TEST_F(HttpTest, AnExceptionIsTheRequestsOwn) {
  start();
  for (const char* const path : {"/throw", "/throw-odd", "/throw-early"}) {
    const std::string text = answer_to(post(path, "abc") + request("GET /health"));
    EXPECT_EQ(text.find("HTTP/1.1 500 Internal Server Error"), 0u) << text;
    EXPECT_EQ(count_of(text, "HTTP/1.1"), 1u) << path;
    EXPECT_EQ(health(), 200) << path;
  }
}

TEST_F(HttpTest, AClientMayEndItsInputFirst) {
  start();
  for (const std::string& text : {request("GET /health"), post("/a", "abc")}) {
    const RawSocket socket = send(text);
    socket.end_input();
    EXPECT_EQ(socket.read_all().find("HTTP/1.1 200"), 0u) << text;
  }
  for (const std::string text : {"GET /hea", "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc"}) {
    const RawSocket socket = send(text);
    socket.end_input();
    EXPECT_EQ(socket.read_all().find("HTTP/1.1 400"), 0u) << text;
  }
  const RawSocket nothing = send("");
  nothing.end_input();
  EXPECT_EQ(nothing.read_all(), "");
}

TEST_F(HttpTest, AnAnswerInPieces) {
  start();
  for (const bool old : {false, true}) {
    const RawSocket socket = ask_late(old ? "POST /late HTTP/1.0\r\n\r\n" : post("/late", "", kClose));
    late()->give({.head = HttpResponse{.type = "text/event-stream"}, .piece = "one"});
    std::string text = socket.read_until("one");
    late()->give({.piece = std::string(20, '2')});
    text += socket.read_until("22222");
    late()->give({.piece = "three", .last = true});
    text += socket.read_all();
    const std::string body = text.substr(text.find("\r\n\r\n") + 4);
    EXPECT_EQ(body, old ? "one22222222222222222222three"
                        : "3\r\none\r\n14\r\n22222222222222222222\r\n5\r\nthree\r\n0\r\n\r\n");
    EXPECT_EQ(count_of(text, "Transfer-Encoding: chunked"), old ? 0u : 1u);
  }
  const RawSocket socket = ask_late(post("/late", "", kClose));
  late()->give({.whole = HttpResponse{.status = 429, .body = "late"}});
  EXPECT_EQ(socket.read_all().find("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n"), 0u);
  EXPECT_FALSE(late()->abandoned);
}

TEST_F(HttpTest, AClientThatLeavesIsNoticed) {
  start();
  for (const bool piece : {false, true}) {
    for (const size_t more : {0, 100000}) {  // bytes that it sends besides, of which a server reads 65,536 ahead
      late()->abandoned = false;
      RawSocket socket = ask_late(post("/late", ""));
      socket.send(std::string(more, 'x'));
      if (piece) {
        late()->give({.head = HttpResponse{}, .piece = "one"});
        socket.read_until("one");
      }
      socket.close();
      wait_until([this] { return late()->abandoned.load(); });
    }
  }
  EXPECT_EQ(left_, 2);
}

}  // namespace
}  // namespace headrace
