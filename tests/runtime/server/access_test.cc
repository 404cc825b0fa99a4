// Who may use a server.
#include "runtime/server/access.h"

#include "tests/runtime/server/server_fixture.h"
#include "tests/support/refusal.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;

TEST(Access, Loopback) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) EXPECT_FALSE(is_loopback(host)) << host;
  expect_error(ExitCode::kUsage, "--host", {"'no such host'"}, [] { is_loopback("no such host"); });
}

TEST(Access, Keys) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_api_keys(folder.write("keys", "one\n\n  two\r\n")), (std::vector<std::string>{"one", "two"}));
  expect_error(ExitCode::kBadInput, folder / "none", {}, [&] { read_api_keys(folder / "none"); });
  EXPECT_THROW(read_api_keys(folder.write("empty", " \n\n")), Error);
  expect_error(ExitCode::kBadInput, folder / "odd", {"key 2"}, [&] { read_api_keys(folder.write("odd", "a\nb c\n")); });
}

TEST(Access, WithoutKeysThisMachineOnly) {
  const auto status = [](const Visitor& visitor) {
    const auto refused = refuse_visitor(visitor, {});
    return refused ? refused->status : 200;
  };
  EXPECT_EQ(status({.path = "/metrics"}), 200);
  for (const char* host : {"localhost", "localhost:8080", "127.0.0.1:80", "[::1]:80"})
    EXPECT_EQ(status({.host = host}), 200);
  for (const char* host : {"example.org", "localhost.example.org", "10.0.0.1:80", "127.0.0.1.example.org", "["}) {
    EXPECT_EQ(status({.host = host}), 403) << host;
  }
  EXPECT_EQ(status({.host = "localhost:80", .origin = "http://localhost:80"}), 200);
  EXPECT_EQ(status({.host = "localhost:80", .origin = "http://localhost:81"}), 403);
  EXPECT_EQ(status({.host = "localhost:80", .origin = "https://example.org"}), 403);
  EXPECT_EQ(status({.host = "localhost:80", .origin = "null"}), 403);
}

TEST_F(ServerTest, AnotherAddressNeedsAKey) {
  expect_error(ExitCode::kUsage, "--host", {"'0.0.0.0'", "no key"}, [this] { start({.host = "0.0.0.0"}); });
  start({.host = "0.0.0.0", .api_key_file = folder_.write("keys", "sesame\n")});
  const HttpClient http = client();
  EXPECT_EQ(http.get("/health").status, 200);
  EXPECT_EQ(http.get("/metrics").status, 401);
  for (const char* wrong : {"Bearer sesam", "Bearer sesame2", "sesame", "Basic sesame", "Bearer "}) {
    EXPECT_EQ(http.get("/v1/models", {{"Authorization", wrong}}).status, 401) << wrong;
  }
  EXPECT_EQ(http.get("/v1/models", {{"Authorization", "Bearer sesame"}}).status, 200);
  EXPECT_EQ(answer("/v1/completions", completion("x"), 401)["error"]["code"], "invalid_api_key");
}

TEST_F(ServerTest, AWebPageOfAnotherOriginIsRefused) {
  start();
  const HttpClient http = client();
  EXPECT_EQ(http.get("/v1/models", {{"Origin", "https://example.org"}}).status, 403);
  EXPECT_EQ(http.get("/v1/models", {{"Host", "example.org"}}).status, 403);
}

TEST_F(ServerTest, APortIsTakenOnce) {
  start();
  ServerOptions same;
  same.port = port();
  JobQueue queue(1);
  ServerMetrics metrics;
  expect_error(ExitCode::kUsage, "--host, --port", {str("port ", same.port)},
               [&] { Server second(engine(), same, queue, metrics); });
}

}  // namespace
}  // namespace headrace
