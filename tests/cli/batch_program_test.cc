// headrace batch: answers in OpenAI's form, reruns, shards, and kill -9 at any point.
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/program_fixture.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using nlohmann::json;

class BatchProgram : public ProgramTest {
 protected:
  static json completion(const std::string& id, const std::string& prompt, const json& more = json::object()) {
    json body = {{"model", "tiny"}, {"prompt", prompt}};
    body.update(more);
    return {{"custom_id", id}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}};
  }
  static json chat(const std::string& id, const std::string& user) {
    return {{"custom_id", id},
            {"method", "POST"},
            {"url", "/v1/chat/completions"},
            {"body", {{"model", "tiny"}, {"messages", {{{"role", "user"}, {"content", user}}}}}}};
  }
  static std::string requests(const std::vector<json>& lines) {
    std::string text;
    for (const json& line : lines) text += line.dump() + "\n";
    return folder_->write("in.jsonl", text);
  }
  Finished batch(const std::string& in, const std::string& out, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"-i", in, "-o", *folder_ / out};
    args.insert(args.end(), more.begin(), more.end());
    return run("batch", args);
  }
  // By custom_id, without what differs from run to run.
  static std::map<std::string, json> answers(const std::string& out) {
    std::map<std::string, json> by_id;
    for (json line : json_lines(folder_->read(out))) {
      if (line["response"].is_object()) {
        line["response"]["body"].erase("created");
        line["response"]["body"].erase("timings");
      }
      const std::string id = line["custom_id"].is_string() ? line["custom_id"].get<std::string>() : "";
      EXPECT_TRUE(by_id.emplace(id, line).second) << id << " twice";
    }
    return by_id;
  }
  // The cached_tokens of each answer, which become 0: they differ by what ran before.
  static std::map<std::string, int64_t> take_cached(std::map<std::string, json>* answers) {
    std::map<std::string, int64_t> by_id;
    for (auto& [id, line] : *answers) {
      if (line["response"]["status_code"] != 200) continue;
      json& cached = line["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"];
      by_id[id] = std::exchange(cached, 0).get<int64_t>();
    }
    return by_id;
  }
};

TEST_F(BatchProgram, AnswersAsGenerateDoes) {
  const std::string in = requests({completion("a", "First."), chat("b", "Second."),
                                   completion("c", "First.", {{"max_tokens", 3}, {"temperature", 0.9}, {"seed", 7}})});
  const Finished finished = batch(in, "answers.jsonl");
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.err.find("3 answered, 0 done before, 0 failed"), std::string::npos) << finished.err;
  const auto lines = answers("answers.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  const json a = lines.at("a")["response"]["body"], b = lines.at("b")["response"]["body"];
  const json c = lines.at("c")["response"]["body"];
  const json plain = json::parse(run("generate", {"-p", "First.", "--no-chat-template", "--json", "-q"}).out);
  EXPECT_EQ(a["choices"][0]["text"], plain["text"]);
  EXPECT_EQ(a["usage"]["prompt_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(a["usage"]["completion_tokens"], 12);
  EXPECT_EQ(a["object"], "text_completion");
  EXPECT_EQ(b["object"], "chat.completion");
  EXPECT_EQ(b["choices"][0]["message"]["content"],
            json::parse(run("generate", {"-p", "Second.", "--json", "-q"}).out)["text"]);
  EXPECT_EQ(b["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(c["usage"]["completion_tokens"], 3);
  const json seeded = json::parse(
      run("generate", {"-p", "First.", "--no-chat-template", "--temp", "0.9", "--seed", "7", "-n", "3", "--json", "-q"})
          .out);
  EXPECT_EQ(c["choices"][0]["text"], seeded["text"]);
}

// The tiny model has no template; one that names roles shows that each turn reaches it.
TEST_F(BatchProgram, AConversationIsRenderedByTheTemplate) {
  const std::string file =
      folder_->write("turns.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:");
  json line = chat("talk", "third");
  line["body"]["messages"] = {{{"role", "user"}, {"content", "first"}},
                              {{"role", "assistant"}, {"content", "second"}},
                              {{"role", "user"}, {"content", "third"}}};
  ASSERT_EQ(batch(requests({line}), "talk.jsonl", {"--chat-template-file", file}).exit_code, 0);
  const std::string prompt = "user: first\nassistant: second\nuser: third\nassistant:";
  EXPECT_EQ(answers("talk.jsonl").at("talk")["response"]["body"]["choices"][0]["message"]["content"],
            json::parse(run("generate", {"-p", prompt, "--no-chat-template", "--json", "-q"}).out)["text"]);
  const Finished none = batch(requests({line}), "none.jsonl", {});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_NE(none.err.find("there is no chat template to render it"), std::string::npos) << none.err;
  ASSERT_EQ(batch(requests({line}), "named.jsonl", {"--chat-template", "llama2"}).exit_code, 0);
  EXPECT_EQ(answers("named.jsonl").at("talk")["response"]["status_code"], 200);
}

TEST_F(BatchProgram, AStopTextEndsTheAnswer) {
  const std::string whole =
      json::parse(run("generate", {"-p", "First.", "--no-chat-template", "--json", "-q"}).out)["text"];
  ASSERT_GT(whole.size(), 6u);
  const json ascii = [&] {  // a character that is a text of its own
    for (const char one : whole.substr(2)) {
      if (one > 0x20 && one < 0x7f) return json(std::string(1, one));
    }
    return json();
  }();
  ASSERT_TRUE(ascii.is_string()) << whole;
  batch(requests({completion("a", "First.", {{"stop", ascii}})}), "stopped.jsonl");
  const json body = answers("stopped.jsonl").at("a")["response"]["body"];
  EXPECT_EQ(body["choices"][0]["text"], whole.substr(0, whole.find(ascii.get<std::string>())));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
}

TEST_F(BatchProgram, ABadLineIsAnErrorLineAndTheRestGoesOn) {
  const std::string in = folder_->write("mixed.jsonl", completion("a", "x").dump() + "\n{\"custom_id\n" +
                                                           completion("b", "x", {{"stream", true}}).dump() + "\n" +
                                                           completion("long", std::string(3000, 'x')).dump() + "\n" +
                                                           completion("c", "x").dump() + "\n");
  const Finished finished = batch(in, "mixed_out.jsonl", {"-c", "500"});
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_NE(finished.err.find("2 answered, 0 done before, 3 failed"), std::string::npos) << finished.err;
  const auto lines = answers("mixed_out.jsonl");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines.at("a")["response"]["status_code"], 200);
  EXPECT_EQ(lines.at("c")["response"]["status_code"], 200);
  EXPECT_EQ(lines.at("b")["response"]["status_code"], 400);
  EXPECT_NE(lines.at("b")["response"]["body"]["error"]["message"].get<std::string>().find(": line 3: body.stream true"),
            std::string::npos);
  EXPECT_EQ(lines.at("long")["response"]["status_code"], 400);
  EXPECT_TRUE(lines.at("")["response"].is_null());
  EXPECT_NE(lines.at("")["error"]["message"].get<std::string>().find(": line 2: "), std::string::npos);
  // A rerun tries the failed ones again and leaves one line for each.
  const Finished again = batch(in, "mixed_out.jsonl", {"-c", "500"});
  EXPECT_NE(again.err.find("0 answered, 2 done before, 3 failed"), std::string::npos) << again.err;
  EXPECT_EQ(answers("mixed_out.jsonl"), lines);
}

TEST_F(BatchProgram, NothingRunsIfTheFilesAreWrong) {
  const std::string twice = requests({completion("a", "x"), completion("b", "y"), completion("a", "z")});
  const Finished refused = batch(twice, "twice.jsonl");
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.err.find("lines 1 and 3 have the same custom_id"), std::string::npos) << refused.err;
  EXPECT_EQ(folder_->read("twice.jsonl"), "");

  ASSERT_EQ(batch(requests({completion("a", "x")}), "other.jsonl").exit_code, 0);
  const std::string before = folder_->read("other.jsonl");
  const Finished other = batch(requests({completion("b", "y"), completion("a", "another")}), "other.jsonl");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("answers 'a' as another request"), std::string::npos) << other.err;
  EXPECT_EQ(folder_->read("other.jsonl"), before);
  EXPECT_EQ(batch(requests({completion("a", "x")}), "other.jsonl", {"--temp", "0.5"}).exit_code, 2);

  const std::string in = requests({completion("a", "x")});
  EXPECT_EQ(run("batch", {"-i", in, "-o", in}).exit_code, 2);
  EXPECT_EQ(folder_->read("in.jsonl"), completion("a", "x").dump() + "\n");
  EXPECT_EQ(run("batch", {"-i", in}).exit_code, 2);
  EXPECT_EQ(run("batch", {"-o", *folder_ / "o.jsonl"}).exit_code, 2);
  EXPECT_EQ(batch(in, "o.jsonl", {"--shard", "2/2"}).exit_code, 2);
}

// What a request asks for counts more than the flag.
TEST_F(BatchProgram, ARequestMayAskForNoThinking) {
  const std::string thinks = folder_->write("thinks.jinja", "{% if enable_thinking %}thinks{% else %}no{% endif %}");
  std::vector<json> lines = {chat("as_the_flag", "x"), chat("none", "x"), chat("kwargs", "x"), chat("empty", "x")};
  lines[1]["body"]["reasoning_effort"] = "none";
  lines[2]["body"]["chat_template_kwargs"] = {{"enable_thinking", false}};
  lines[3]["body"]["chat_template_kwargs"] = json::object();
  const std::string in = requests(lines);
  ASSERT_EQ(batch(in, "thinks.jsonl", {"--chat-template-file", thinks, "--thinking"}).exit_code, 0);
  for (const auto& [id, line] : answers("thinks.jsonl")) {
    const bool flag = id == "as_the_flag" || id == "empty";
    EXPECT_EQ(line["response"]["body"]["usage"]["prompt_tokens"], flag ? 6 : 2) << id;
  }
}

// Nothing is read from stdout, so a run answers all requests.
TEST_F(BatchProgram, ADashIsStandardOutput) {
  const std::string in = requests({completion("a", "x"), completion("b", "y")});
  ASSERT_EQ(batch(in, "beside.jsonl").exit_code, 0);
  for (int i = 0; i < 2; ++i) {
    const Finished finished = run("batch", {"-i", in, "-o", "-"});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    folder_->write("from_stdout.jsonl", finished.out);
    EXPECT_EQ(answers("from_stdout.jsonl"), answers("beside.jsonl"));
  }
  EXPECT_EQ(run_program({"batch", "merge", "-i", in, "-o", "-"}).exit_code, 2);
}

TEST_F(BatchProgram, APromptBeyondTheContextHasItsCode) {
  const Finished finished = batch(requests({completion("a", std::string(3000, 'x'))}), "long.jsonl", {"-c", "500"});
  EXPECT_EQ(finished.exit_code, 3);
  const json error = answers("long.jsonl").at("a")["response"]["body"]["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_NE(error["message"].get<std::string>().find("3000 tokens, the context holds 500"), std::string::npos) << error;
}

TEST_F(BatchProgram, ShardsJoinToWhatOneRunGives) {
  std::vector<json> lines;
  for (int i = 0; i < 9; ++i) lines.push_back(completion("r" + std::to_string(i), std::to_string(i)));
  const std::string in = requests(lines);
  ASSERT_EQ(batch(in, "single.jsonl").exit_code, 0);
  for (const char* shard : {"0/3", "1/3", "2/3"})
    ASSERT_EQ(batch(in, "sharded.jsonl", {"--shard", shard}).exit_code, 0);
  const Finished merged = run_program({"batch", "merge", "-i", in, "-o", *folder_ / "sharded.jsonl"});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_NE(merged.out.find("9 requests from 3 shards, 0 failed"), std::string::npos) << merged.out;
  EXPECT_EQ(answers("sharded.jsonl"), answers("single.jsonl"));
  size_t number = 0;
  for (const json& line : json_lines(folder_->read("sharded.jsonl"))) {
    EXPECT_EQ(line["custom_id"], "r" + std::to_string(number++));
  }
}

// Questions about two documents, in turn: greedy and sampled, with and without log-probabilities, short and long.
TEST_F(BatchProgram, ALongBeginningIsPrefilledOnce) {
  const std::string document(3000, 'd'), other(3000, 'o');
  const std::vector<json> lines = {completion("d1", document + "first"),
                                   completion("o1", other + "first"),
                                   completion("d2", document + "second", {{"max_tokens", 40}}),
                                   completion("o2", other + "second", {{"temperature", 0.8}, {"seed", 5}}),
                                   completion("d3", document + std::string(900, 't'), {{"logprobs", 2}}),
                                   completion("o3", other.substr(0, 1500) + std::string(800, 'x'), {{"max_tokens", 3}}),
                                   completion("short", "short")};
  std::map<std::string, json> alone;
  for (const json& line : lines) {
    ASSERT_EQ(batch(requests({line}), "alone_" + line["custom_id"].get<std::string>() + ".jsonl").exit_code, 0);
    alone.merge(answers("alone_" + line["custom_id"].get<std::string>() + ".jsonl"));
  }
  EXPECT_EQ(take_cached(&alone), (std::map<std::string, int64_t>{
                                     {"d1", 0}, {"d2", 0}, {"d3", 0}, {"o1", 0}, {"o2", 0}, {"o3", 0}, {"short", 0}}));
  const std::string in = requests(lines);
  const Finished finished = batch(in, "alike.jsonl");
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  auto alike = answers("alike.jsonl");
  // Of each prompt the last 16 tokens are computed in any case.
  EXPECT_EQ(take_cached(&alike),
            (std::map<std::string, int64_t>{
                {"d1", 0}, {"d2", 2990}, {"d3", 3000}, {"o1", 0}, {"o2", 2990}, {"o3", 1500}, {"short", 0}}));
  EXPECT_EQ(alike, alone);
  EXPECT_NE(finished.err.find("d2: 3,006 tokens in (2,990 reused), 40 out"), std::string::npos) << finished.err;

  ASSERT_EQ(batch(in, "turns.jsonl", {"--in-order"}).exit_code, 0);
  auto turns = answers("turns.jsonl");
  for (const auto& [id, tokens] : take_cached(&turns)) EXPECT_EQ(tokens, 0) << id;
  EXPECT_EQ(turns, alone);

  const std::string grouped = requests({lines[0], lines[2], lines[1], lines[3]});
  ASSERT_EQ(batch(grouped, "grouped.jsonl", {"--in-order"}).exit_code, 0);
  auto in_order = answers("grouped.jsonl");
  EXPECT_EQ(take_cached(&in_order), (std::map<std::string, int64_t>{{"d1", 0}, {"d2", 2990}, {"o1", 0}, {"o2", 2990}}));
  EXPECT_EQ(in_order.at("d2"), alone.at("d2"));
}

// Two documents with questions each, greedy and sampled.
TEST_F(BatchProgram, SeveralDevicesAnswerAsOneDoes) {
  std::vector<json> lines;
  for (int i = 0; i < 8; ++i) {
    lines.push_back(completion("r" + std::to_string(i), std::string(1500, i % 2 == 0 ? 'a' : 'b') + std::to_string(i),
                               {{"temperature", i < 4 ? 0.0 : 0.8}, {"seed", i}}));
  }
  lines.push_back(completion("bad", "x", {{"stream", true}}));
  const std::string in = requests(lines);
  EXPECT_EQ(batch(in, "one.jsonl").exit_code, 3);
  auto one = answers("one.jsonl");
  take_cached(&one);
  const Finished finished = batch(in, "two.jsonl", {"--devices", "cpu,cpu", "--prefix-cache", *folder_ / "kept"});
  EXPECT_EQ(finished.exit_code, 3) << finished.err;
  EXPECT_NE(finished.err.find("8 answered, 0 done before, 1 failed; cpu "), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("/9] r7: "), std::string::npos) << finished.err;
  int saved = 0;
  auto two = answers("two.jsonl");
  for (const auto& [id, tokens] : take_cached(&two)) saved += tokens == 1500 ? 1 : 0;
  EXPECT_EQ(two, one);
  EXPECT_GE(saved, 3);  // 6 if no device helps the other out
  ASSERT_EQ(batch(in, "kept.jsonl", {"--devices", "cpu,cpu"}).exit_code, 3);
  int kept = 0;
  auto rows = answers("kept.jsonl");
  for (const auto& [id, tokens] : take_cached(&rows)) kept += tokens == 1485 ? 1 : 0;
  EXPECT_EQ(rows, one);
  EXPECT_GE(kept, 3);
  const Finished again = batch(in, "two.jsonl", {"--devices", "cpu,cpu,cpu"});
  EXPECT_NE(again.err.find("0 answered, 8 done before, 1 failed; cpu 0, cpu 0, cpu 0\n"), std::string::npos)
      << again.err;
  EXPECT_EQ(answers("two.jsonl").size(), 9u);
  EXPECT_EQ(batch(in, "one.jsonl", {"--devices", "cpu"}).exit_code, 3);
}

TEST_F(BatchProgram, CtrlCEndsAllDevicesAndARerunContinues) {
  SKIP_WITHOUT_A_TERMINAL();
  // On a fast machine, too, the bar is drawn before they are answered.
  constexpr int kRequests = testing::kSanitized ? 6 : 30;
  std::vector<json> lines;
  for (int i = 0; i < kRequests; ++i) {
    lines.push_back(completion("r" + std::to_string(i), std::to_string(i), {{"max_tokens", 300}}));
  }
  const std::string in = requests(lines);
  ASSERT_EQ(batch(in, "whole.jsonl").exit_code, 0);
  Program program({"batch", "-m", model_, "--ignore-eos", "-t", "1", "-n", "12", "-i", in, "-o", *folder_ / "cut.jsonl",
                   "--devices", "cpu,cpu"},
                  Program::Streams::kTerminal);
  ASSERT_TRUE(program.read_until(" | [")) << "both are on the bar";
  program.type("\x03");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 130) << finished.out;
  EXPECT_NE(finished.out.find("interrupted, the same command continues; cpu "), std::string::npos) << finished.out;
  EXPECT_LT(answers("cut.jsonl").size(), static_cast<size_t>(kRequests));
  ASSERT_EQ(batch(in, "cut.jsonl", {"--devices", "cpu,cpu"}).exit_code, 0);
  EXPECT_EQ(answers("cut.jsonl"), answers("whole.jsonl"));
}

TEST_F(BatchProgram, KillNineLosesNothingAndAnswersNothingTwice) {
  std::vector<json> lines;
  for (int i = 0; i < (testing::kSanitized ? 6 : 12); ++i)
    lines.push_back(completion("r" + std::to_string(i), std::to_string(i), {{"max_tokens", 150}}));
  const std::string in = requests(lines);
  ASSERT_EQ(batch(in, "undisturbed.jsonl").exit_code, 0);
  const std::string out = *folder_ / "killed.jsonl";
  for (const size_t done : {1, 2, 4}) {  // each time a little further on
    Program program({"batch", "-m", model_, "-n", "12", "--ignore-eos", "-t", "1", "-i", in, "-o", out, "-q"},
                    Program::Streams::kNone);
    ASSERT_TRUE(wait_for_lines(out, done, &program));
    program.send(SIGKILL);
    EXPECT_EQ(program.wait().signal, SIGKILL);
  }
  EXPECT_LT(lines_written(out), lines.size()) << "too quick to be killed in the middle";
  ASSERT_EQ(batch(in, "killed.jsonl").exit_code, 0);
  EXPECT_EQ(answers("killed.jsonl"), answers("undisturbed.jsonl"));
}

// What make writes, batch answers: with the texts of summarize.
TEST_F(ProgramTest, BatchMakeWritesRequestsForDocuments) {
  const std::string a = folder_->write("make/a.txt", "First \"document\"."),
                    b = folder_->write("make/b.txt", "Second.");
  const std::string requests = *folder_ / "made.jsonl", answers = *folder_ / "made-answers.jsonl";
  const Finished made = run_program({"batch", "make", *folder_ / "make", "-o", requests, "-n", "12"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(run_program({"batch", "make", *folder_ / "make", "-n", "12"}).out, folder_->read("made.jsonl"));
  EXPECT_EQ(run("batch", {"-i", requests, "-o", answers}).exit_code, 0);
  const std::vector<nlohmann::json> lines = json_lines(folder_->read("made-answers.jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  for (const nlohmann::json& line : lines) {
    const std::string file = line["custom_id"];
    EXPECT_TRUE(file == a || file == b) << file;
    EXPECT_EQ(line["response"]["body"]["choices"][0]["message"]["content"].get<std::string>() + "\n",
              run("summarize", {file, "-q"}).out);
  }
  const Finished system = run_program({"batch", "make", a, "--system", "Be brief.", "--instruction", ""});
  const nlohmann::json body = nlohmann::json::parse(system.out)["body"];
  EXPECT_EQ(body["messages"], nlohmann::json::parse(R"([{"role": "system", "content": "Be brief."},
                                                        {"role": "user", "content": "First \"document\"."}])"));
  EXPECT_EQ(body["max_tokens"], 1024);
  EXPECT_EQ(run_program({"batch", "make", *folder_ / "none"}).exit_code, 3);
  EXPECT_EQ(run_program({"batch", "make"}).exit_code, 2);
}

}  // namespace
}  // namespace headrace
