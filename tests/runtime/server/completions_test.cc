// What a server answers: completions as a whole and as events, the model, tokens, and errors by name.
#include <map>
#include <sstream>

#include "tests/cli/tiny_model.h"
#include "tests/runtime/server/server_fixture.h"

namespace headrace {
namespace {

using nlohmann::json;

// The JSON of the events; the last must be [DONE].
std::vector<json> events(const std::string& body) {
  std::vector<json> found;
  std::istringstream in(body);
  bool done = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    EXPECT_FALSE(done) << line;
    EXPECT_EQ(line.substr(0, 6), "data: ");
    done = line == "data: [DONE]";
    if (!done) found.push_back(json::parse(line.substr(6)));
  }
  EXPECT_TRUE(done);
  return found;
}

TEST_F(ServerTest, AnswersAsTheEngineDoes) {
  const std::string plain = expected("First.", usual_);
  GenerateOptions seeded = usual_;
  seeded.max_tokens = 5;
  seeded.sampling = {.temperature = 0.9f, .top_p = 0.8f, .seed = 7};
  const std::string sampled = expected("First.", seeded);
  start();
  const json a = answer("/v1/completions", completion("First."));
  EXPECT_EQ(a["choices"][0]["text"], plain);
  EXPECT_EQ(a["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(a["object"], "text_completion");
  EXPECT_EQ(a["model"], "tiny");
  EXPECT_EQ(a["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(a["usage"]["completion_tokens"], 12);
  EXPECT_EQ(a["timings"]["prompt_n"], 6);
  EXPECT_EQ(a["timings"]["predicted_n"], 12);
  EXPECT_GT(a["timings"]["prompt_ms"], 0);
  EXPECT_GT(a["timings"]["predicted_per_second"], 0);
  const json b = answer("/v1/completions",
                        completion("First.", {{"max_tokens", 5}, {"temperature", 0.9}, {"top_p", 0.8}, {"seed", 7}}));
  EXPECT_EQ(b["choices"][0]["text"], sampled);
  const json c = answer("/v1/chat/completions", chat("First."));  // without a template, the text alone
  EXPECT_EQ(c["choices"][0]["message"]["content"], plain);
  EXPECT_EQ(c["object"], "chat.completion");
  EXPECT_NE(a["id"], c["id"]);
}

// Thinking that a budget ends, apart from the answer: in one piece and in a stream, which add up to the same.
TEST_F(ServerTest, ThinkingIsApartFromTheAnswer) {
  TemporaryFolder folder;
  write_tiny_model(folder / "thinks");
  EngineOptions options;
  options.model = folder / "thinks";
  options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
  options.chat_template_file =
      folder.write("thinks.jinja", "{{ messages[-1].content.split('</think>')[-1] }}<think>\n");
  Engine engine(options);
  used_ = &engine;
  constexpr int64_t kBudget = 20, kMark = 8;  // the mark is eight bytes, each a token
  usual_.max_tokens = 60;
  usual_.reasoning_budget = 1000;
  start();
  const json whole = answer("/v1/chat/completions", chat("Why?", {{"reasoning_budget_tokens", kBudget}}));
  const json& message = whole["choices"][0]["message"];
  ASSERT_FALSE(message["reasoning_content"].get<std::string>().empty()) << whole;
  ASSERT_FALSE(message["content"].get<std::string>().empty()) << whole;
  EXPECT_EQ(whole["usage"]["completion_tokens"], 60);
  EXPECT_EQ(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], kBudget);

  std::string thinking, text;
  for (const json& piece : events(
           post("/v1/chat/completions", chat("Why?", {{"reasoning_budget_tokens", kBudget}, {"stream", true}})).body)) {
    const json& delta = piece["choices"][0]["delta"];
    thinking += delta.value("reasoning_content", "");
    text += delta.value("content", "");
    EXPECT_TRUE(text.empty() || !delta.contains("reasoning_content"));
  }
  EXPECT_EQ(thinking, message["reasoning_content"]);
  EXPECT_EQ(text, message["content"]);

  const json together = answer("/v1/chat/completions",
                               chat("Why?", {{"reasoning_budget_tokens", kBudget}, {"reasoning_format", "none"}}));
  const json& all = together["choices"][0]["message"];
  EXPECT_FALSE(all.contains("reasoning_content"));
  EXPECT_NE(all["content"].get<std::string>().find("</think>"), std::string::npos);
  const json unlimited = answer("/v1/chat/completions", chat("Why?"));
  EXPECT_EQ(unlimited["choices"][0]["message"]["content"], "");
  EXPECT_EQ(unlimited["usage"]["completion_tokens_details"]["reasoning_tokens"], 60);
  EXPECT_LT(kBudget + kMark, 60);
  stop();
}

TEST_F(ServerTest, APromptBeyondTheContextHasItsCode) {
  start();
  for (const size_t bytes : {size_t{70000}, size_t{5} << 20}) {
    const json error = answer("/v1/completions", completion(std::string(bytes, 'x')), 400)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded") << error;
    EXPECT_NE(error["message"].get<std::string>().find("60000"), std::string::npos) << error;
  }
}

// What a request can need is taken from --host-mem before it is read.
TEST_F(ServerTest, ABodyThatNeedsTooMuchMemoryIsRefused) {
  const std::unique_ptr<Engine> small = open_engine(200 * kMiB);
  used_ = small.get();
  start();
  EXPECT_EQ(answer("/tokenize", {{"content", std::string(1000, 'x')}})["tokens"].size(), 1000u);
  const json error = answer("/tokenize", {{"content", std::string(4 << 20, 'x')}}, 413)["error"];
  EXPECT_EQ(error["code"], "body_too_long");
  EXPECT_NE(error["message"].get<std::string>().find("--host-mem"), std::string::npos) << error;
  EXPECT_EQ(answer("/v1/completions", completion(std::string(4 << 20, 'x')), 413)["error"]["code"], "body_too_long");
  stop();
}

TEST(RequestMemory, IsTakenKeptAndGivenBack) {
  MemoryBudget host("--host-mem", kGiB);
  constexpr uint64_t kLongest = kMiB, kBody = kLongest + kMaxFileText;  // with its files
  RequestMemory memory(host.reserve(RequestMemory::part_of(100 * kGiB, kLongest, 0), "requests"));
  EXPECT_EQ(memory.take(2 * kBody, nullptr)->status, 413);
  RequestMemory::Share first, second;
  EXPECT_FALSE(memory.take(kBody, &first));
  EXPECT_EQ(memory.take(kBody, &second)->status, 503);
  first.keep(1000);
  EXPECT_FALSE(memory.take(kBody, &second));
  second = {};
  first.keep(2000);
  RequestMemory::Share third = std::move(first);
  EXPECT_FALSE(memory.take(kBody, &second));
}

// A file's text may be longer than the body.
TEST(RequestMemory, CountsTheTextOfFiles) {
  MemoryBudget host("--host-mem", 4 * kGiB);
  const std::string file = R"({"filename":"a","file_data":"YQ=="})";
  RequestMemory large(host.reserve(RequestMemory::part_of(100 * kGiB, kMiB, 0), "requests")),
      small(host.reserve(100 * kMiB, "requests"));
  EXPECT_EQ(large.file_rules("{}").text_bytes, 0u);
  EXPECT_EQ(large.file_rules(file).text_bytes, kMaxFileText);
  EXPECT_FALSE(large.file_rules(file).waits);
  RequestMemory::Share share;
  EXPECT_FALSE(large.take(kMiB + kMaxFileText, &share));
  const uint64_t text = small.file_rules(file).text_bytes;
  EXPECT_LT(text, kMaxFileText);
  EXPECT_GT(text, 0u);
  EXPECT_FALSE(small.take(file.size() + text, &share));
}

TEST(Failures, ABusyConverterIsAskedAgain) {
  const Failure failure = failure_of(ConverterBusy("a.pdf"));
  EXPECT_EQ(failure.status, 503);
  EXPECT_EQ(failure.code, "converter_busy");
  EXPECT_GT(failure.retry_after_s, 0);
}

TEST_F(ServerTest, EventsAddUpToTheWholeAnswer) {
  start();
  const json whole = answer("/v1/chat/completions", chat("First."));
  const HttpResponse result = post(
      "/v1/chat/completions",
      chat("First.", {{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"return_progress", true}}));
  EXPECT_EQ(header_of(result, "Content-Type"), "text/event-stream");
  const std::vector<json> pieces = events(result.body);
  ASSERT_GE(pieces.size(), 5u);
  std::string text;
  int64_t processed = 0;
  for (const json& piece : pieces) {
    EXPECT_EQ(piece["object"], "chat.completion.chunk");
    EXPECT_EQ(piece["id"], pieces[0]["id"]);
    if (piece.contains("prompt_progress")) {
      EXPECT_EQ(piece["prompt_progress"]["total"], whole["usage"]["prompt_tokens"]);
      EXPECT_EQ(piece["prompt_progress"]["cache"], 0);
      EXPECT_GE(piece["prompt_progress"]["processed"], processed);
      processed = piece["prompt_progress"]["processed"];
    }
    if (!piece["choices"].empty()) text += piece["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(pieces[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(text, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(pieces[pieces.size() - 2]["choices"][0]["finish_reason"], "length");
  const json& last = pieces.back();
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"], whole["usage"]);
  EXPECT_EQ(last["timings"]["predicted_n"], 12);
}

TEST_F(ServerTest, AStreamOfACompletion) {
  start();
  const json whole = answer("/v1/completions", completion("First."));
  const std::vector<json> pieces = events(post("/v1/completions", completion("First.", {{"stream", true}})).body);
  std::string text;
  for (const json& piece : pieces) {
    EXPECT_EQ(piece["object"], "text_completion");
    EXPECT_FALSE(piece.contains("usage"));
    EXPECT_FALSE(piece.contains("prompt_progress"));
    text += piece["choices"][0]["text"];
  }
  EXPECT_EQ(text, whole["choices"][0]["text"]);
  EXPECT_EQ(pieces.back()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(pieces.back()["timings"]["predicted_n"], 12);
}

// The pieces of a stream add up to what the whole answer has, and each token comes with its text.
TEST_F(ServerTest, LogProbabilitiesOfAChat) {
  start();
  const json more = {{"logprobs", true}, {"top_logprobs", 3}, {"temperature", 0.9}, {"seed", 7}};
  const json whole = answer("/v1/chat/completions", chat("First.", more))["choices"][0];
  const json& content = whole["logprobs"]["content"];
  ASSERT_EQ(content.size(), 12u);
  std::string bytes;
  for (const json& token : content) {
    for (const json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
    EXPECT_LE(token["logprob"], 0);
    ASSERT_EQ(token["top_logprobs"].size(), 3u);
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["logprob"]);
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
  }
  const std::string text = whole["message"]["content"];
  if (text.find("\xef\xbf\xbd") == std::string::npos) {
    EXPECT_EQ(bytes, text);
  }
  json streamed = more;
  streamed["stream"] = true;
  json together = json::array();
  std::string said;
  for (const json& piece : events(post("/v1/chat/completions", chat("First.", streamed)).body)) {
    const json& choice = piece["choices"][0];
    said += choice["delta"].value("content", "");
    if (choice["logprobs"].is_null()) continue;
    for (const json& token : choice["logprobs"]["content"]) together.push_back(token);
  }
  EXPECT_EQ(together, content);
  EXPECT_EQ(said, text);
  EXPECT_TRUE(answer("/v1/chat/completions", chat("First."))["choices"][0]["logprobs"].is_null());
}

TEST_F(ServerTest, LogProbabilitiesOfACompletion) {
  start();
  const json whole = answer("/v1/completions", completion("First.", {{"logprobs", 2}}))["choices"][0]["logprobs"];
  ASSERT_EQ(whole["tokens"].size(), 12u);
  EXPECT_EQ(whole["token_logprobs"].size(), 12u);
  EXPECT_EQ(whole["text_offset"][0], 0);
  for (size_t i = 0; i < 12; ++i) {  // at temperature 0 the chosen token is the likeliest
    ASSERT_EQ(whole["top_logprobs"][i].size(), 2u);
    EXPECT_EQ(whole["top_logprobs"][i][whole["tokens"][i].get<std::string>()], whole["token_logprobs"][i]);
    if (i > 0) {
      EXPECT_GE(whole["text_offset"][i], whole["text_offset"][i - 1]);
    }
  }
  const json none = answer("/v1/completions", completion("First.", {{"logprobs", 0}}))["choices"][0]["logprobs"];
  EXPECT_TRUE(none["top_logprobs"].is_null());
  EXPECT_EQ(none["token_logprobs"], whole["token_logprobs"]);
  std::vector<json> offsets;
  for (const json& piece :
       events(post("/v1/completions", completion("First.", {{"logprobs", 0}, {"stream", true}})).body)) {
    const json& log_probs = piece["choices"][0]["logprobs"];
    if (!log_probs.is_null())
      offsets.insert(offsets.end(), log_probs["text_offset"].begin(), log_probs["text_offset"].end());
  }
  EXPECT_EQ(json(offsets), whole["text_offset"]);
}

TEST_F(ServerTest, AStopTextEndsTheAnswer) {
  start();
  const std::string whole = answer("/v1/completions", completion("First."))["choices"][0]["text"];
  json stop;
  for (const char one : whole.substr(2)) {
    if (one > 0x20 && one < 0x7f && stop.is_null()) stop = std::string(1, one);
  }
  ASSERT_TRUE(stop.is_string()) << whole;
  const json body = answer("/v1/completions", completion("First.", {{"stop", stop}}));
  EXPECT_EQ(body["choices"][0]["text"], whole.substr(0, whole.find(stop.get<std::string>())));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServerTest, ErrorsNameTheField) {
  start();
  struct Case {
    json body;
    const char* says;
  };
  const std::vector<Case> cases = {
      {chat("x", {{"logprobs", 2}}), "logprobs 2 must be true or false"},
      {chat("x", {{"top_logprobs", 3}}), "top_logprobs 3 needs \"logprobs\": true"},
      {chat("x", {{"tools", json::array({1})}}), "tools[0] has the type 1"},
      {chat("x", {{"temperature", 3}}), "temperature 3 must be"},
      {chat("x", {{"surprise", 3}}), "surprise 3 is not supported"},
      {chat("x", {{"stream", "yes"}}), "stream \"yes\" must be true or false"},
      {chat("x", {{"stream_options", {{"include_usage", true}}}}), "needs \"stream\": true"},
      {chat("x", {{"return_progress", true}}), "return_progress true needs \"stream\": true"},
      {chat("x", {{"stream", true}, {"stream_options", {{"surprise", 1}}}}), "unknown field \"surprise\""},
      {completion("x"), "prompt \"x\" belongs to completions"},
      {completion(""), "belongs to completions"},
      {json::array(), "request"},
  };
  for (const Case& one : cases) {
    const json error = answer("/v1/chat/completions", one.body, 400)["error"];
    EXPECT_NE(error["message"].get<std::string>().find(one.says), std::string::npos) << error << " " << one.says;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_TRUE(error["param"].is_null());
    EXPECT_EQ(error["code"], "bad_input");
  }
  EXPECT_EQ(answer("/v1/completions", completion(""), 400)["error"]["code"], "bad_input");  // no token to start from
  const json embeddings = answer("/v1/embeddings", completion("x"), 404)["error"];
  EXPECT_EQ(embeddings["code"], "not_found");
  EXPECT_NE(embeddings["message"].get<std::string>().find("/v1/embeddings"), std::string::npos);
  const HttpClient http = client();
  EXPECT_EQ(http.get("/v1/completions").status, 404);
  EXPECT_EQ(http.post("/v1/completions", "{\"model").status, 400);
  EXPECT_EQ(http.post("/v1/completions", "{}", {{"Content-Type", "multipart/form-data; boundary=x"}}).status, 415);
  // The server works on.
  EXPECT_EQ(answer("/v1/completions", completion("x"))["usage"]["completion_tokens"], 12);
}

TEST_F(ServerTest, AQuestionComputesOnlyWhatIsNew) {
  usual_.keep = KeepRows::kPrompt;
  start();
  std::map<std::string, std::string> texts;
  const auto ask = [&](const std::string& prompt) {
    const json body = answer("/v1/completions", completion(prompt));
    texts[prompt] = body["choices"][0]["text"];
    return body["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  };
  for (const size_t bytes : {200, 300, 2000, 2500}) {
    const std::string document(bytes, static_cast<char>('a' + bytes / 500));
    EXPECT_EQ(ask(document + "first"), 0) << bytes;
    const int64_t cached = ask(document + "other");
    if (bytes < 256) {
      EXPECT_EQ(cached, 0);
    } else {  // the last 16 tokens of a prompt are computed in any case
      EXPECT_GE(cached, static_cast<int64_t>(bytes) - 11);
    }
  }
  stop();
  usual_.keep = KeepRows::kNone;
  for (const auto& [prompt, text] : texts) EXPECT_EQ(text, expected(prompt, usual_));
}

TEST_F(ServerTest, ARunThatDoesNotFitIsItsOwnError) {
  const std::unique_ptr<Engine> small = open_engine(32 * kMiB);
  used_ = small.get();
  start();
  for (const bool stream : {false, true}) {
    const json error =
        answer("/v1/completions", completion("x", {{"max_tokens", 50000}, {"stream", stream}}), 400)["error"];
    EXPECT_EQ(error["code"], "does_not_fit");
    EXPECT_NE(error["message"].get<std::string>().find("--host-mem"), std::string::npos) << error;
  }
  EXPECT_EQ(answer("/v1/completions", completion("x"))["usage"]["completion_tokens"], 12);
  const std::string text = client().get("/metrics").body;
  for (const char* line : {"headrace_runs_total 3\n", "headrace_runs_failed_total 2\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  stop();
}

TEST_F(ServerTest, TheModelAndItsTokens) {
  start();
  const HttpClient http = client();
  const json models = json::parse(http.get("/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["meta"]["n_ctx"], 60000);
  EXPECT_EQ(models["data"][0]["meta"]["prefill_type"], "f32");
  EXPECT_EQ(json::parse(http.get("/v1/models/tiny").body), models["data"][0]);
  EXPECT_EQ(http.get("/v1/models/other").status, 404);
  EXPECT_EQ(answer("/tokenize", {{"content", "ab"}})["tokens"], json({97, 98}));
  // Text never becomes a special token.
  EXPECT_EQ(answer("/tokenize", {{"content", "<|im_end|>"}})["tokens"].size(), 10u);
  EXPECT_EQ(answer("/tokenize", {{"content", "a"}, {"with_pieces", true}})["tokens"],
            json::array({{{"id", 97}, {"piece", "a"}}}));
  EXPECT_EQ(answer("/tokenize", {{"text", "a"}}, 400)["error"]["code"], "bad_input");
  EXPECT_EQ(answer("/tokenize", json::object(), 400)["error"]["code"], "bad_input");
}

TEST_F(ServerTest, ThePageUsesNothingElse) {
  start({.api_key_file = folder_.write("keys", "sesame\n")});
  const HttpResponse page = client().get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(header_of(page, "Content-Type"), "text/html; charset=utf-8");
  const std::string policy = header_of(page, "Content-Security-Policy");
  EXPECT_EQ(policy.find("default-src 'none'"), 0u);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  // The script by its digest; page_program_test has a browser check it.
  EXPECT_NE(policy.find("script-src 'sha256-"), std::string::npos) << policy;
  EXPECT_NE(page.body.find("</html>"), std::string::npos);
  for (const char* outside : {"http:", "https:", "@import", "url("})
    EXPECT_EQ(page.body.find(outside), std::string::npos);
}

TEST_F(ServerTest, MetricsCountAndHealthFollowsTheModel) {
  start({}, Works::kNo);
  EXPECT_EQ(client().get("/health").status, 503);
  start();
  EXPECT_EQ(client().get("/health").status, 200);
  answer("/v1/completions", completion("First."));
  answer("/v1/completions", {{"model", "secret"}}, 400);
  const std::string text = client().get("/metrics").body;
  for (const char* line : {"headrace_runs_total 1\n", "headrace_prompt_tokens_total 6\n",
                           "headrace_generated_tokens_total 12\n", "headrace_requests_waiting 0\n",
                           "headrace_requests_running 0\n", "headrace_responses_total{status=\"400\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace headrace
