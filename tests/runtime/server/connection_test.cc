// The limits of a connection: the length and the time of what a client sends.
#include <unistd.h>

#include <chrono>

#include "tests/runtime/server/server_fixture.h"

namespace headrace {
namespace {

using nlohmann::json;

double seconds_of(const std::function<void()>& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

TEST_F(ServerTest, ALongBodyIsRefused) {
  start({.body_bytes = 1000});
  const json body = completion(std::string(2000, 'x'));
  EXPECT_EQ(answer("/v1/completions", body, 413)["error"]["code"], "body_too_long");
  for (const char* const path : {"/", "/health", "/no/such/address"}) {  // which take no body at all
    httplib::Client other = client();
    const httplib::Result posted = other.Post(path, body.dump(), "application/json");
    ASSERT_TRUE(posted) << path;
    EXPECT_EQ(posted->status, 413) << path;
  }
  httplib::Client http = client();
  const httplib::Result chunked = http.Post(
      "/v1/completions",
      [text = body.dump()](size_t, httplib::DataSink& sink) {
        sink.write(text.data(), text.size());
        sink.done();
        return true;
      },
      "application/json");
  ASSERT_TRUE(chunked);
  EXPECT_EQ(chunked->status, 413);
  EXPECT_EQ(http.Post("/tokenize", httplib::Headers{{"Content-Encoding", "gzip"}}, "x", "application/json")->status,
            415);
  EXPECT_EQ(answer("/v1/completions", completion("x"))["usage"]["completion_tokens"], 12);
}

TEST_F(ServerTest, ASlowRequestIsCutOff) {
  start({.read_seconds = 0.3});
  const std::string post_head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{";
  for (const std::string& begun :
       {std::string("GET /hea"), std::string("GET /health HTTP/1.1\r\nHost: loc"), post_head}) {
    const int socket = send_raw(begun);
    const double took = seconds_of([&] {
      const std::string text = read_raw(socket);
      EXPECT_TRUE(text.empty() || text.find("HTTP/1.1 400") == 0) << text;
    });
    EXPECT_LT(took, 5);
    ::close(socket);
  }
  // Byte after byte, each in time.
  const int socket = send_raw("GET /health HTTP/1.1\r\n");
  const double took = seconds_of([&] {
    while (::send(socket, "a", 1, MSG_NOSIGNAL) == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  EXPECT_LT(took, 5);
  ::close(socket);
}

TEST_F(ServerTest, ALongHeaderIsCutOff) {
  start();
  std::string text = "GET /health HTTP/1.1\r\n";
  while (text.size() < 200000) text += "a: " + std::string(1000, 'b') + "\r\n";
  const int socket = send_raw(text + "\r\n");
  EXPECT_NE(read_raw(socket).find("HTTP/1.1 400"), std::string::npos);
  ::close(socket);
}

TEST_F(ServerTest, OneConnectionManyRequests) {
  start();
  const int socket = send_raw(http_post("/tokenize", {{"content", "a"}}) + http_post("/tokenize", {{"content", "b"}}) +
                              "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string text = read_raw(socket);
  ::close(socket);
  const size_t a = text.find("{\"tokens\":[97]}"), b = text.find("{\"tokens\":[98]}"),
               ok = text.find("{\"status\":\"ok\"}");
  EXPECT_NE(ok, std::string::npos) << text;
  EXPECT_LT(a, b);
  EXPECT_LT(b, ok);
}

TEST_F(ServerTest, TheEndDoesNotWaitForIdleConnections) {
  start();
  const int idle = send_raw(""), begun = send_raw("GET /heal");
  EXPECT_LT(seconds_of([this] { stop(); }), 4);
  ::close(idle);
  ::close(begun);
}

}  // namespace
}  // namespace headrace
