// The queue of a server: its bounds in places and time, clients that leave, and the server's end.
#include <future>

#include "tests/runtime/server/server_fixture.h"

namespace headrace {
namespace {

using nlohmann::json;

TEST_F(ServerTest, BeyondTheQueueIs429) {
  start({.queue = 1}, Works::kNo);  // with no worker, a place for the one that would run and one that waits
  RawSocket first = send_raw(http_post("/v1/completions", completion("a")));
  RawSocket second = send_raw(http_post("/v1/chat/completions", chat("b", {{"stream", true}})));
  wait_until([&] { return queue()->waiting() == 2; });
  const HttpResponse refused = post("/v1/completions", completion("c"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(header_of(refused, "Retry-After"), "1");
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "queue_full");
  // A client that leaves frees its place.
  first.close();
  wait_until([&] { return queue()->waiting() == 1; });
  second.close();
  wait_until([&] { return queue()->waiting() == 0; });
}

TEST_F(ServerTest, AWaitHasAnEnd) {
  start({.queue_seconds = 0.05}, Works::kNo);
  for (const bool stream : {false, true}) {
    const HttpResponse result = post("/v1/completions", completion("a", {{"stream", stream}}));
    EXPECT_EQ(result.status, 503);
    EXPECT_EQ(json::parse(result.body)["error"]["code"], "queue_timeout");
    EXPECT_FALSE(header_of(result, "Retry-After").empty());
  }
  EXPECT_EQ(queue()->waiting(), 0u);
}

TEST_F(ServerTest, AClientThatLeavesEndsItsRun) {
  for (const bool stream : {false, true}) {
    start();
    RawSocket socket =
        send_raw(http_post("/v1/completions", completion("a", {{"max_tokens", 50000}, {"stream", stream}})));
    wait_until([&] { return queue()->running(); });
    if (stream) {  // within the answer
      EXPECT_NE(socket.read_until("data: "), "");
    }
    socket.close();
    wait_until([&] { return !queue()->running(); });
    EXPECT_NE(metrics()->text(*queue()).find("headrace_runs_cancelled_total 1\n"), std::string::npos);
    EXPECT_EQ(answer("/v1/completions", completion("a"))["usage"]["completion_tokens"], 12);
  }
}

TEST_F(ServerTest, TheEndAnswersEveryRequest) {
  start();
  auto running = std::async(std::launch::async, [this] {
    return post("/v1/completions", completion("a", {{"max_tokens", 50000}}));
  });
  auto streaming = std::async(std::launch::async, [this] {
    wait_until([this] { return queue()->running(); });
    return post("/v1/completions", completion("b", {{"max_tokens", 50000}, {"stream", true}}));
  });
  wait_until([&] { return queue()->running() && queue()->waiting() == 1; });
  stop();
  for (auto* const each : {&running, &streaming}) {
    const HttpResponse result = each->get();
    EXPECT_EQ(result.status, 503);
    EXPECT_EQ(json::parse(result.body)["error"]["code"], "server_stops");
  }
}

TEST_F(ServerTest, TheEndIsAnEventOfAStream) {
  start();
  RawSocket socket = send_raw(http_post("/v1/completions", completion("a", {{"max_tokens", 50000}, {"stream", true}})));
  const std::string begun = socket.read_until("data: ");
  stop();
  const std::string text = begun + socket.read_all();
  EXPECT_NE(text.find("\"code\":\"server_stops\""), std::string::npos);
  EXPECT_NE(text.find("data: [DONE]\n\n\r\n0\r\n\r\n"), std::string::npos) << text;
}

TEST_F(ServerTest, ManyClientsGetTheirOwnAnswers) {
  std::vector<std::string> wanted;
  for (int i = 0; i < 6; ++i) wanted.push_back(expected(str("prompt ", i), usual_));
  start({.queue = 20});
  std::vector<std::future<void>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::async(std::launch::async, [this, i, &wanted] {
      for (int round = 0; round < 3; ++round) {
        EXPECT_EQ(answer("/v1/completions", completion(str("prompt ", i)))["choices"][0]["text"],
                  wanted[static_cast<size_t>(i)]);
      }
    }));
  }
}

}  // namespace
}  // namespace headrace
