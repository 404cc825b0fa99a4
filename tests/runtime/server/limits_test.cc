// What a server refuses before it reads it, and what a page of another origin may ask.
#include <atomic>
#include <new>

#include "tests/runtime/server/server_fixture.h"

namespace headrace {
namespace {

using nlohmann::json;

TEST_F(ServerTest, ALongBodyIsRefused) {
  start({.body_bytes = 1000});
  const json body = completion(std::string(2000, 'x'));
  EXPECT_EQ(answer("/v1/completions", body, 413)["error"]["code"], "body_too_long");
  for (const char* const path : {"/", "/health", "/no/such/address"}) {  // which take no body at all
    EXPECT_EQ(client().post(path, body.dump()).status, 413) << path;
  }
  const HttpResponse chunked = client().post("/v1/completions", body.dump(), {{"Transfer-Encoding", "chunked"}});
  EXPECT_EQ(chunked.status, 413);
  EXPECT_EQ(client().post("/tokenize", "x", {{"Content-Encoding", "gzip"}}).status, 415);
  EXPECT_EQ(answer("/v1/completions", completion("x"))["usage"]["completion_tokens"], 12);
}

TEST_F(ServerTest, APathOfAnyLengthIsAPath) {
  start();
  for (const size_t length : {8100, 60000}) {
    const HttpResponse response = client().get("/v1/models/" + std::string(length, 'a'));
    EXPECT_EQ(response.status, 404);
    EXPECT_EQ(json::parse(response.body)["error"]["code"], "model_not_found");
  }
  EXPECT_EQ(client().get("/" + std::string(60000, '/')).status, 404);
  EXPECT_EQ(client().get("/v1/models/%74iny?x=1").status, 200);
}

TEST_F(ServerTest, EachAddressSaysItsMethods) {
  start();
  const HttpResponse head = client().ask("HEAD", "/health", "", {});
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(header_of(head, "Content-Length"), "15");
  EXPECT_EQ(header_of(client().ask("OPTIONS", "/health", "", {}), "Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(header_of(client().ask("OPTIONS", "/v1/completions", "", {}), "Allow"), "POST, OPTIONS");
  EXPECT_EQ(client().ask("OPTIONS", "/nope", "", {}).status, 404);
  for (const char* const method : {"PUT", "DELETE", "PATCH", "BREW"}) {
    EXPECT_EQ(client().ask(method, "/v1/completions", "{}", {}).status, 404) << method;
    EXPECT_EQ(client().ask(method, "/health", "", {}).status, 404) << method;
  }
}

TEST_F(ServerTest, ARangeIsNotAsked) {
  start();
  const HttpResponse whole = client().get("/");
  for (const char* const range : {"bytes=0-1", "bytes=-1", "bytes=9999999999999999999-", "bytes=0-,0-,0-,0-", "x"}) {
    const HttpResponse response = client().get("/", {{"Range", range}});
    EXPECT_EQ(response.status, 200) << range;
    EXPECT_EQ(response.body, whole.body) << range;
  }
}

TEST_F(ServerTest, APageOfAnotherOriginMayAskAServerWithKeys) {
  start({.api_key_file = folder_.write("keys", "sesame\n")});
  const HttpHeader origin = {"Origin", "https://example.org"}, key = {"Authorization", "Bearer sesame"};
  const HttpResponse may = client().ask(
      "OPTIONS", "/v1/chat/completions", "",
      {origin, {"Access-Control-Request-Method", "POST"}, {"Access-Control-Request-Headers", "authorization,x-a"}});
  EXPECT_EQ(may.status, 204);
  EXPECT_EQ(header_of(may, "Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(header_of(may, "Access-Control-Allow-Methods"), "GET, POST, OPTIONS");
  EXPECT_EQ(header_of(may, "Access-Control-Allow-Headers"), "authorization,x-a");
  EXPECT_NE(header_of(may, "Access-Control-Max-Age"), "");
  EXPECT_EQ(client().ask("OPTIONS", "/v1/models", "", {}).status, 401);  // no page asks without an origin
  struct Case {
    HttpResponse response;
    int status;
  };
  const json stream = completion("x", {{"stream", true}});
  const std::vector<Case> cases = {{client().get("/v1/models", {origin, key}), 200},
                                   {client().get("/v1/models", {origin}), 401},
                                   {client().get("/nope", {origin, key}), 404},
                                   {client().post("/tokenize", "{", {origin, key}), 400},
                                   {client().post("/v1/completions", stream.dump(), {origin, key}), 200},
                                   {client().ask("GET", "/\x01", "", {origin, key}), 400}};
  for (const Case& each : cases) {
    EXPECT_EQ(each.response.status, each.status) << each.response.body;
    EXPECT_EQ(header_of(each.response, "Access-Control-Allow-Origin"), "*") << each.status;
  }
}

TEST_F(ServerTest, APageOfAnotherOriginMayAskNothingWithoutKeys) {
  start();
  for (const char* const method : {"OPTIONS", "GET", "HEAD", "POST"}) {
    const HttpResponse response = client().ask(method, "/v1/models", "", {{"Origin", "https://example.org"}});
    EXPECT_EQ(response.status, 403) << method;
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Origin"), "") << method;
  }
}

TEST_F(ServerTest, ARequestWithoutMemoryIsItsOwnError) {
  std::atomic<bool> fails{false};
  usual_.on_text = [&fails](std::string_view) {
    if (fails) throw std::bad_alloc();
  };
  start();
  fails = true;
  EXPECT_EQ(answer("/v1/completions", completion("x"), 503)["error"]["code"], "out_of_memory");
  fails = false;
  EXPECT_EQ(answer("/v1/completions", completion("x"))["usage"]["completion_tokens"], 12);
}

}  // namespace
}  // namespace headrace
