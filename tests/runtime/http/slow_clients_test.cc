// HttpServer: clients that are slow or many keep nobody else from being served, and the end does not wait for them.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/runtime/http/http_fixture.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;

const std::string kPost = "POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{";
const std::string kPage = "GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n";
const std::string kLate = "POST /late HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
const std::string kHold = "POST /hold HTTP/1.1\r\nContent-Length: 0\r\n\r\n";

TEST_F(HttpTest, SlowClientsKeepNobodyWaiting) {
  start({.connections = 40});
  std::vector<RawSocket> slow;
  for (int i = 0; i < 120; ++i) {
    const std::string begun[] = {"", "GET /hea", kPost, kPage + kPage + kPage};
    slow.emplace_back(port(), begun[i % 4], 2000);
    if (i % 10 == 0) {
      EXPECT_LT(seconds_of([this] { EXPECT_EQ(health(), 200); }), 5);
    }
  }
  EXPECT_EQ(HttpClient(port()).post("/a", "abc").status, 200);
}

TEST_F(HttpTest, HandlersThatAreBusyKeepNobodyWaiting) {
  start({.connections = 30, .handling = 20});
  std::vector<RawSocket> many;
  for (int i = 0; i < 20; ++i) many.push_back(send(kHold));
  wait_until([this] { return at_header_ == 20; });
  EXPECT_EQ(answer_to(kHold).find("HTTP/1.1 503"), 0u);  // more would be too many
  EXPECT_EQ(health(), 200);
  release();
  for (const RawSocket& each : many) EXPECT_NE(each.read_until("/hold 0;"), "");
}

TEST_F(HttpTest, WhereAllClientsWaitForAnswersANewOneIsRefused) {
  start({.connections = 4});
  std::vector<RawSocket> many;
  for (int i = 0; i < 4; ++i) many.push_back(send(kHold));
  wait_until([this] { return holding_ == 4; });
  EXPECT_EQ(health(), 503);
  release();
  for (const RawSocket& each : many) EXPECT_NE(each.read_until("/hold 0;"), "");
  EXPECT_EQ(health(), 200);
}

TEST_F(HttpTest, SlowClientsAreCutOff) {
  start({.idle = milliseconds(100), .read = milliseconds(100), .write = milliseconds(100)});
  for (const std::string& begun : {std::string(), std::string("GET /hea"), kPost}) {
    const RawSocket socket = send(begun);
    std::string text;
    EXPECT_LT(seconds_of([&] { text = socket.read_all(); }), 5);
    EXPECT_EQ(text.substr(0, 12), begun.empty() ? "" : "HTTP/1.1 400");
  }
  const RawSocket drips = send("GET /health HTTP/1.1\r\n");  // byte after byte, each in time
  EXPECT_LT(seconds_of([&] {
              while (drips.send("a")) std::this_thread::sleep_for(milliseconds(10));
            }),
            5);
}

// A reader that is slow gets what it takes; what an answer has beyond that is not asked for.
TEST_F(HttpTest, ASlowReaderHoldsItsAnswerBack) {
  start({.write = milliseconds(300)});
  const RawSocket socket = ask_late(kLate, 2000);
  late()->give({.head = HttpResponse{}, .piece = "first"});
  for (int i = 0; i < 64; ++i) late()->give({.piece = std::string(size_t{1} << 20, 'x')});
  socket.read_until("first");
  EXPECT_EQ(health(), 200);
  wait_until([this] { return late()->abandoned.load(); });  // it has taken nothing in time
  EXPECT_LT(late()->taken, size_t{32} << 20);
}

TEST_F(HttpTest, BodiesAreBoundedTogether) {
  start({.body_bytes = 1 << 20, .all_body_bytes = 2 << 20});
  std::vector<RawSocket> large;  // of which two fit
  for (int i = 0; i < 3; ++i) {
    large.push_back(send("POST /a HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"));
    EXPECT_TRUE(large.back().send(std::string(900000, 'x')));
  }
  const auto refused = [&] {
    return std::find_if(large.begin(), large.end(), [](const RawSocket& each) { return each.has_input(); });
  };
  wait_until([&] { return refused() != large.end(); });
  const auto one = refused();
  EXPECT_EQ(one->read_all().find("HTTP/1.1 503"), 0u);
  EXPECT_EQ(HttpClient(port()).post("/a", std::string(50000, 'x')).status, 200);  // a small one always fits
  for (auto each = large.begin(); each != large.end(); ++each) {
    if (each == one) continue;
    EXPECT_TRUE(each->send(std::string(100000, 'x')));
    EXPECT_NE(each->read_until("POST /a 1000000;"), "");
  }
  for (int i = 0; i < 3; ++i) {  // what has been answered takes no room
    EXPECT_EQ(HttpClient(port()).post("/a", std::string(1000000, 'x')).status, 200);
  }
}

// A process may run out of descriptors before the limit of connections.
TEST_F(HttpTest, WithoutDescriptorsOthersAreServed) {
  start();
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<RawSocket> slow;
  for (int i = 0; i < 10; ++i) slow.push_back(send("GET /hea"));
  wait_until([this] { return health() == 200; });  // they have been accepted
  const rlimit few = {.rlim_cur = 200, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> rest;
  for (int taken = ::dup(0); taken >= 0; taken = ::dup(0)) rest.push_back(taken);
  ASSERT_FALSE(rest.empty());
  ::close(rest.back());  // for the client's own socket
  rest.pop_back();
  const std::string text = answer_to("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  ::setrlimit(RLIMIT_NOFILE, &before);
  for (const int taken : rest) ::close(taken);
  EXPECT_EQ(text.find("HTTP/1.1 200"), 0u);
}

TEST_F(HttpTest, TheEndWaitsForNobody) {
  start();
  const RawSocket idle = send(""), header = send("GET /hea"), body = send(kPost), holds = send(kHold);
  const RawSocket reader(port(), kPage + kPage + kPage + kPage, 2000);
  const RawSocket late_one = ask_late(kLate);
  wait_until([this] { return holding_ == 1; });
  std::thread releases([this] {
    wait_until([this] { return late()->abandoned.load(); });
    release();  // a handler is waited for
  });
  EXPECT_LT(seconds_of([this] { server().finish(); }), 2.5);
  releases.join();
  EXPECT_EQ(idle.read_all() + header.read_all() + body.read_all() + holds.read_all() + late_one.read_all(), "");
}

TEST_F(HttpTest, TheEndLetsAnAnswerFinish) {
  start();
  const RawSocket socket = ask_late(kLate);
  late()->give({.head = HttpResponse{}, .piece = "one"});
  std::string text = socket.read_until("one");
  std::thread ends([this] { server().finish(); });
  late()->give({.piece = "two", .last = true});
  text += socket.read_all();
  ends.join();
  EXPECT_EQ(text.substr(text.find("\r\n\r\n") + 4), "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
}

}  // namespace
}  // namespace headrace
