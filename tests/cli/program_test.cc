// The program as a user meets it: streams, exit codes, JSON, environment, documents and their failures.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trace_reader.h"

namespace headrace {
namespace {

using nlohmann::json;

class ProgramTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    model_ = *folder_ / "model";
    write_tiny_model(model_);
  }
  static void TearDownTestSuite() { delete folder_; }

  // `command` with the tiny model; deterministic, 12 tokens unless `more` says otherwise.
  static Finished run(const std::string& command, const std::vector<std::string>& more,
                      const RunOptions& options = {}) {
    std::vector<std::string> args = {command, "-m", model_, "-n", "12", "--ignore-eos", "-t", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args, options);
  }
  static std::vector<json> json_lines(const std::string& text) {
    std::vector<json> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }

  static TemporaryFolder* folder_;
  static std::string model_;
};
TemporaryFolder* ProgramTest::folder_ = nullptr;
std::string ProgramTest::model_;

TEST_F(ProgramTest, HelpAndVersionGoToStdout) {
  const Finished help = run_program({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("summarize"), std::string::npos);
  EXPECT_EQ(help.err, "");
  const Finished version = run_program({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(version.out.starts_with("headrace ")) << version.out;
}

TEST_F(ProgramTest, ListsDevices) {
  const Finished list = run_program({"--list-devices"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_NE(list.out.find("\ncpu "), std::string::npos) << list.out;
  EXPECT_EQ(list.out.find("cuda"), 0u) << list.out;  // one, or why there is none
}

TEST_F(ProgramTest, SaysWhyAutoTakesTheCpu) {
  bool gpu = false;
  std::istringstream devices(run_program({"--list-devices"}).out);
  for (std::string device; std::getline(devices, device);) {
    gpu = gpu || (device.starts_with("cuda:") && device.find("cannot be used") == std::string::npos);
  }
  const std::string line = "--device auto takes the CPU: ";
  EXPECT_EQ(run("generate", {"-p", "Hello", "--device", "auto"}).err.find(line) == std::string::npos, gpu);
  EXPECT_EQ(run("generate", {"-p", "Hello", "--device", "cpu"}).err.find(line), std::string::npos);
  EXPECT_EQ(run("generate", {"-p", "Hello", "--device", "auto", "-q"}).err, "");
}

TEST_F(ProgramTest, TextOnStdoutReportOnStderr) {
  const Finished run1 = run("generate", {"-p", "Hello"});
  EXPECT_EQ(run1.exit_code, 0) << run1.err;
  EXPECT_FALSE(run1.out.empty());
  EXPECT_TRUE(run1.out.ends_with('\n'));
  for (const char* part : {"prompt", "first token after", "output    12 tokens", "moved", "memory", "(length)"}) {
    EXPECT_NE(run1.err.find(part), std::string::npos) << part << "\n" << run1.err;
  }
  const Finished quiet = run("generate", {"-p", "Hello", "--quiet"});
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.out, run1.out);
  EXPECT_EQ(quiet.err, "");
}

TEST_F(ProgramTest, JsonIsOneObjectOfTheSameRun) {
  const std::string text = run("generate", {"-p", "Hello"}).out;
  const Finished finished = run("generate", {"-p", "Hello", "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<json> lines = json_lines(finished.out);
  ASSERT_EQ(lines.size(), 1u);
  const json& line = lines[0];
  const std::string in_json = line["text"];
  EXPECT_EQ(in_json.ends_with('\n') ? in_json : in_json + "\n", text);
  EXPECT_EQ(line["token_ids"].size(), 12u);
  EXPECT_EQ(line["finish_reason"], "length");
  EXPECT_GE(line["prompt_tokens"], 5);
  EXPECT_GT(line["timings"]["ttft_ms"], 0);
  EXPECT_GT(line["timings"]["prefill_tokens_per_s"], 0);
  EXPECT_GT(line["timings"]["decode_tokens_per_s"], 0);
  EXPECT_GT(line["memory"]["vram_peak_bytes"], 0);
  EXPECT_TRUE(line["transfers"].contains("decode_h2d_bytes"));
}

TEST_F(ProgramTest, APromptComesFromFlagFileOrStdin) {
  const std::string file = folder_->write("prompt.txt", "Hello");
  const std::string text = run("generate", {"-p", "Hello", "-q"}).out;
  EXPECT_EQ(run("generate", {"-f", file, "-q"}).out, text);
  EXPECT_EQ(run("generate", {"-q"}, {.input = "Hello", .environment = {}, .stdout_path = ""}).out, text);
  EXPECT_EQ(run("generate", {"-f", "-", "-q"}, {.input = "Hello", .environment = {}, .stdout_path = ""}).out, text);
  const auto prompt_tokens = [](const Finished& finished) {
    return json::parse(finished.out)["prompt_tokens"].get<int>();
  };
  // A file and a question after it: the file, an empty line, the question.
  EXPECT_EQ(prompt_tokens(run("generate", {"-f", file, "-p", "Why?", "--json"})),
            prompt_tokens(run("generate", {"-p", "Hello\n\nWhy?", "--json"})));
}

TEST_F(ProgramTest, TheTemplateIsAFlag) {
  const auto tokens = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"-p", "Hello", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return json::parse(run("generate", args).out)["prompt_tokens"].get<int>();
  };
  EXPECT_EQ(tokens({"--no-chat-template"}), 5);  // one a byte
  EXPECT_GT(tokens({"--chat-template", "chatml"}), 5 + 4);
  EXPECT_GT(tokens({"--chat-template", "chatml", "--system", "Be brief."}), tokens({"--chat-template", "chatml"}));
}

TEST_F(ProgramTest, ExitCodesAndMessagesNameFileAndValue) {
  struct Case {
    std::vector<std::string> args;
    int code;
    std::vector<std::string> parts;  // of stderr
  };
  const std::string folder = folder_->path(), latin = folder_->write("latin.txt", "caf\xe9"),
                    empty = folder_->write("empty.txt", ""), hello = folder_->write("hello.txt", "Hello");
  const std::vector<Case> cases = {
      {{"generate", "-p", "x"}, 2, {"-m/--model"}},
      {{"generate", "-m", model_, "-p", "x", "--temp", "hot"}, 2, {"--temp", "'hot'"}},
      {{"generate", "-m", model_, "-p", "x", "--chat-template", "vicuna"}, 2, {"vicuna", "chatml"}},
      {{"generate", "-m", folder + "/gone", "-p", "x"}, 3, {folder + "/gone"}},
      {{"generate", "-m", hello, "-p", "x"}, 3, {hello}},
      {{"inspect", folder + "/gone.gguf"}, 3, {folder + "/gone.gguf"}},
      {{"inspect", folder}, 3, {folder}},
      {{"generate", "-m", model_, "-f", folder + "/gone.txt"}, 3, {folder + "/gone.txt"}},
      {{"generate", "-m", model_, "-f", folder}, 3, {folder, "is a folder"}},
      {{"generate", "-m", model_, "-f", latin}, 3, {latin, "0xe9", "offset 3"}},
      {{"generate", "-m", model_, "-f", empty}, 3, {empty, "is empty"}},
      {{"generate", "-m", model_, "-p", std::string(200, 'x'), "-c", "100"},
       3,
       {"200", "100", "raise -c: the model takes 1000000"}},
      {{"generate", "-m", model_, "-f", ""}, 2, {"-f/--file is empty"}},
      {{"generate", "-m", model_, "-p", "x", "--spill", folder + ":nonsense"}, 2, {"--spill", "'nonsense' is no size"}},
      {{"generate", "-m", model_, "-p", "x", "--prefix-cache", folder + "/pc:"},
       2,
       {"--prefix-cache", "'' is no size"}},
      {{"cache", "list", ""}, 2, {"headrace cache list: DIR is empty", "headrace cache list --help"}},
      {{"cache", "foo"}, 2, {"'foo' is none of its actions: list, verify or prune"}},
      {{"cache", "prune", folder, "--to", "much"}, 2, {"--to", "headrace cache prune --help"}},
      {{"summarize", folder + "/gone.txt", "-m", model_}, 3, {folder + "/gone.txt"}},
      {{"summarize", hello, "-m", model_, "-c", "16"}, 3, {hello, "16", "--truncate middle"}},
      {{"generate", "-m", model_, "-p", "x", "--host-mem", "100KiB"}, 4, {"100.00 KiB"}},
      {{"generate", "-m", model_, "-p", "x", "--vram", "64KiB"}, 4, {"64.00 KiB"}},
      {{"generate", "-m", model_, "-p", "x", "--spill", folder + "/gone:1GiB"}, 5, {folder + "/gone:"}},
      {{"generate", "-m", model_, "-p", "x", "--spill", hello}, 5, {hello, "(ENOTDIR)", "name a folder"}},
      {{"generate", "-m", model_, "-p", "x", "--trace", folder + "/gone/t.json"}, 5, {folder + "/gone/t.json"}},
      {{"generate", "-m", model_, "-p", "x", "--trace", folder}, 5, {folder, "directory"}},
      {{"summarize", hello, "-m", model_, "--trace", hello}, 3, {hello, "is no trace"}},
      {{"summarize", hello, "-m", model_, "-o", folder + "/gone/out.jsonl"}, 5, {folder + "/gone/out.jsonl"}},
      {{"summarize", hello, "-m", model_, "-o", hello}, 3, {hello, "line 1"}},
  };
  for (const Case& c : cases) {
    const Finished finished = run_program(c.args);
    const std::string shown = json(c.args).dump() + "\n" + finished.err;
    EXPECT_EQ(finished.exit_code, c.code) << shown;
    EXPECT_TRUE(finished.err.starts_with("error: ") || finished.err.find("\nerror: ") != std::string::npos) << shown;
    for (const std::string& part : c.parts)
      EXPECT_NE(finished.err.find(part), std::string::npos) << part << "\n" << shown;
    EXPECT_EQ(finished.out, "") << shown;
  }
  EXPECT_EQ(folder_->read("hello.txt"), "Hello");
}

// A run that host memory has no room for says what a disk would do, and with one says what it would have said.
TEST_F(ProgramTest, WhatDoesNotFitSpillsToADisk) {
  const TemporaryFolder disk;
  const std::string prompt(1100, 'x');  // two whole segments
  const std::vector<std::string> common = {"-p", prompt, "--no-chat-template", "--kv", "host", "-n", "8", "--json"};
  const auto say = [&](uint64_t host_bytes, bool spill) {
    std::vector<std::string> args = common;
    args.insert(args.end(), {"--host-mem", std::to_string(host_bytes)});
    if (spill) args.insert(args.end(), {"--spill", disk.path() + ":1GiB"});
    return run("generate", args);
  };
  const Finished roomy = say(kGiB, true);
  ASSERT_EQ(roomy.exit_code, 0) << roomy.err;
  const json whole = json::parse(roomy.out);
  EXPECT_FALSE(whole.contains("spill"));  // it fits
  // The most that is too little, to 64 KiB.
  uint64_t host = 0, enough = 3 * whole["memory"]["vram_peak_bytes"].get<uint64_t>();
  while (enough - host > 64 * kKiB) {
    const uint64_t between = host + (enough - host) / 2;
    (say(between, false).exit_code == 0 ? enough : host) = between;
  }
  const Finished refused = say(host, false);
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_NE(refused.err.find("--spill DIR"), std::string::npos) << refused.err;
  const Finished spilled = say(host, true);
  ASSERT_EQ(spilled.exit_code, 0) << spilled.err;
  const json on_disk = json::parse(spilled.out);
  EXPECT_EQ(on_disk["text"], whole["text"]);
  EXPECT_EQ(on_disk["spill"]["folder"], disk.path());
  EXPECT_GT(on_disk["spill"]["decode_read_bytes"], 0);
  EXPECT_EQ(on_disk["memory"]["disk_peak_bytes"], on_disk["spill"]["file_bytes"]);
  EXPECT_NE(spilled.err.find("\n  disk      "), std::string::npos) << spilled.err;
  EXPECT_TRUE(std::filesystem::is_empty(disk.path()));
}

// Whatever a command writes there.
TEST_F(ProgramTest, AFullDiskBehindStdoutIsAStorageError) {
  const std::string cache = *folder_ / "full-cache";
  EXPECT_EQ(run("generate", {"-p", "Hello", "--prefix-cache", cache + ":16MiB"}).exit_code, 0);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"generate", "-m", model_, "-p", "Hello", "-n", "2"},
        {"inspect", model_},
        {"inspect", model_, "--json"},
        {"inspect", model_, "--tensors"},
        {"cache", "list", cache},
        {"cache", "verify", cache, "--json"},
        {"plan", "--shape", "smollm2-135m", "-c", "1K", "--device", "cpu"},
        {"bench", "--list-shapes"},
        {"--list-devices"},
        {"--help"},
        {"summarize", "--help"},
        {"--version"}}) {
    const Finished finished = run_program(args, {.input = "", .environment = {}, .stdout_path = "/dev/full"});
    EXPECT_EQ(finished.exit_code, 5) << json(args).dump();
    EXPECT_NE(finished.err.find("error: standard output: cannot be written: No space left"), std::string::npos)
        << json(args).dump() << finished.err;
  }
}

// The text is there all the same.
TEST_F(ProgramTest, AFullDiskBehindATraceIsAStorageError) {
  const Finished finished = run("generate", {"-p", "Hello", "--trace", "/dev/full"});
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_EQ(finished.out, run("generate", {"-p", "Hello"}).out);
  EXPECT_NE(finished.err.find("/dev/full: cannot be written: No space left"), std::string::npos) << finished.err;
}

TEST_F(ProgramTest, ATraceIsForAllThatACommandDoes) {
  const std::string a = folder_->write("traced/a.txt", "First."), b = folder_->write("traced/b.txt", "Second.");
  const Finished finished = run("summarize", {*folder_ / "traced", "--trace", *folder_ / "t.json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.err.find("  trace     " + *folder_ / "t.json" + ": 22 of 22 decode steps, H2D busy "),
            std::string::npos)
      << finished.err;
  const testing::ReadTrace read = testing::read_trace(folder_->read("t.json"));
  EXPECT_EQ(read.one(a).track, "run");
  EXPECT_GE(read.one(b).begin_us, read.one(a).end_us());
  EXPECT_EQ(read.count("prefill"), 2);
  EXPECT_EQ(read.count("step"), 22);
  const RunOptions environment = {
      .input = "", .environment = {{"HEADRACE_TRACE", *folder_ / "t.json"}}, .stdout_path = ""};
  EXPECT_EQ(run("generate", {"-p", "Hello", "-q"}, environment).err, "");
  EXPECT_EQ(testing::read_trace(folder_->read("t.json")).count("step"), 11);
  // Nothing was asked: nothing is written, not even for what was asked the last time.
  const std::string before = folder_->read("t.json");
  EXPECT_EQ(run("generate", {"-p", "Hello"}).err.find("trace"), std::string::npos);
  EXPECT_EQ(folder_->read("t.json"), before);
}

TEST_F(ProgramTest, ARunThatFailsLeavesAValidTrace) {
  const Finished finished = run("generate", {"-p", "x", "--vram", "64KiB", "--trace", *folder_ / "failed.json"});
  EXPECT_EQ(finished.exit_code, 4);
  testing::read_trace(folder_->read("failed.json"));
}

TEST_F(ProgramTest, TheEnvironmentSpeaksWhereNoFlagDoes) {
  const Finished flag = run("generate", {"-p", "Hello", "-q"});
  const RunOptions environment = {.input = "",
                                  .environment = {{"HEADRACE_MODEL", model_},
                                                  {"HEADRACE_PREDICT", "12"},
                                                  {"HEADRACE_IGNORE_EOS", "true"},
                                                  {"HEADRACE_QUIET", "1"},
                                                  {"HEADRACE_PROMPT", "Hello"}},
                                  .stdout_path = ""};
  const Finished finished = run_program({"generate"}, environment);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out, flag.out);
}

// What the command line says leaves no room for some of what the environment says: that is passed over.
TEST_F(ProgramTest, TheEnvironmentGivesWay) {
  struct Case {
    std::vector<std::pair<std::string, std::string>> environment;
    std::vector<std::string> args;
  };
  const std::vector<std::string> generate = {"generate", "-m", model_, "-p", "Hello", "-n", "2", "-q"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), generate.begin(), generate.end());
    return more;
  };
  for (const Case& c :
       {Case{{{"HEADRACE_MODEL", model_}, {"HEADRACE_PREDICT", "-1"}},
             {"plan", "--shape", "smollm2-135m", "-c", "1K", "--device", "cpu"}},
        Case{{{"HEADRACE_PARTIAL_BUDGET", "1K"}, {"HEADRACE_BLOCK_SCORE", "specpv"}}, generate},
        Case{{{"HEADRACE_VERIFY", "full"}, {"HEADRACE_SPEC_TYPE", "ngram-simple"}}, with({"--partial-budget", "1K"})},
        Case{{{"HEADRACE_NO_CHAT_TEMPLATE", "1"}}, with({"--chat-template", "chatml"})}}) {
    const Finished finished = run_program(c.args, {.input = "", .environment = c.environment, .stdout_path = ""});
    EXPECT_EQ(finished.exit_code, 0) << json(c.args).dump() << finished.err;
  }
}

TEST_F(ProgramTest, InspectSaysWhatAModelIs) {
  const Finished text = run_program({"inspect", model_, "--tensors"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part :
       {"llama", "4 layers of 64", "vocabulary 512", "KV cache", "24 GiB", "model.embed_tokens.weight"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
  const json line = json::parse(run_program({"inspect", model_, "--json"}).out);
  EXPECT_EQ(line["layers"], 4);
  EXPECT_EQ(line["kv_bytes_per_token"], 2 * 4 * line["kv_heads"].get<int>() * line["head_dim"].get<int>() * 4);  // f32
  EXPECT_EQ(line["max_positions"], 1000000);
  EXPECT_FALSE(line.contains("tensors"));
}

TEST_F(ProgramTest, SummarizeGoesOnAfterADocumentThatFails) {
  const std::string a = folder_->write("docs/a.txt", "First document."), b = folder_->write("docs/b.txt", "bad \xff"),
                    c = folder_->write("docs/c.txt", "Third document.");
  const Finished text = run("summarize", {*folder_ / "docs", "-q"});
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_TRUE(text.out.starts_with("==> " + a + " <==\n")) << text.out;
  EXPECT_NE(text.out.find("\n==> " + c + " <==\n"), std::string::npos) << text.out;
  EXPECT_NE(text.err.find("error: " + b + ": is not UTF-8"), std::string::npos) << text.err;

  const Finished finished = run("summarize", {*folder_ / "docs", "--json", "-q"});
  EXPECT_EQ(finished.exit_code, 3);
  const std::vector<json> lines = json_lines(finished.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["file"], a);
  EXPECT_EQ(lines[0]["token_ids"].size(), 12u);
  EXPECT_NE(lines[1]["error"].get<std::string>().find("not UTF-8"), std::string::npos);
  EXPECT_EQ(lines[2]["file"], c);
}

TEST_F(ProgramTest, OneDocumentIsItsSummaryAlone) {
  const std::string a = folder_->write("one.txt", "First document.");
  const Finished finished = run("summarize", {a, "-q"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out.find("==>"), std::string::npos);
  // The instruction follows the text behind an empty line.
  const Finished generated =
      run("generate", {"-p", "First document.\n\nWrite a short summary of the text above.", "-q"});
  EXPECT_EQ(finished.out, generated.out);
  EXPECT_NE(run("summarize", {a, "-q", "--instruction", "Translate."}).out, finished.out);
  EXPECT_EQ(run("summarize", {a, "-q", "--vram", "64KiB"}).exit_code, 4);
}

TEST_F(ProgramTest, TruncateMiddleMakesItFit) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i) + "\n";
  const std::string file = folder_->write("long.txt", text);
  const Finished refused = run("summarize", {file, "-c", "500"});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.err.find(" too many: the context holds 500, 12 of them for the answer"), std::string::npos)
      << refused.err;
  const Finished finished = run("summarize", {file, "-c", "500", "--truncate", "middle", "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const json line = json::parse(finished.out);
  EXPECT_LE(line["prompt_tokens"], 488);
  EXPECT_GT(line["prompt_tokens"], 450);
  EXPECT_EQ(line["token_ids"].size(), 12u);
  const int64_t whole = line["truncated"]["whole_tokens"], left_out = line["truncated"]["left_out_tokens"];
  EXPECT_EQ(whole, line["prompt_tokens"].get<int64_t>() + left_out);
  EXPECT_GT(left_out, 3000);
  EXPECT_NE(finished.err.find("\n  truncated "), std::string::npos) << finished.err;
  const Finished batch =
      run("summarize", {file, "-c", "500", "--truncate", "middle", "-o", *folder_ / "truncated.jsonl"});
  EXPECT_NE(batch.err.find(" left out of the middle), 12 out"), std::string::npos) << batch.err;
  EXPECT_EQ(json::parse(folder_->read("truncated.jsonl"))["truncated"], line["truncated"]);
}

// What would be cut with --truncate middle is refused without: a summary of two tokens is none, and a batch would keep
// it. A text that may be as long as there is room for takes what there is.
TEST_F(ProgramTest, ADocumentLeavesItsSummaryRoom) {
  const std::string file = folder_->write("close.txt", std::string(400, 'x')), out = *folder_ / "close.jsonl";
  const int64_t whole = json::parse(run("summarize", {file, "--json", "-q"}).out)["prompt_tokens"];
  const auto summarize = [&](int64_t context, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {file, "-c", std::to_string(context), "-o", out});
    return run("summarize", more);
  };
  const Finished refused = summarize(whole + 2);
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.err.find(file + ": is " + std::to_string(whole) + " tokens long, 10 too many: the context of " +
                             std::to_string(whole + 2) + " leaves 2 of 12 tokens for the answer"),
            std::string::npos)
      << refused.err;
  EXPECT_TRUE(json::parse(folder_->read("close.jsonl")).contains("error"));
  EXPECT_EQ(summarize(whole + 12).exit_code, 0);
  EXPECT_EQ(summarize(whole + 2, {"-n", "2"}).exit_code, 0);
  const Finished rest = run("summarize", {file, "-c", std::to_string(whole + 2), "-n", "-1"});
  EXPECT_EQ(rest.exit_code, 0);
  EXPECT_NE(rest.err.find("output    2 tokens, "), std::string::npos) << rest.err;
  EXPECT_NE(rest.err.find("(length: the context is full)"), std::string::npos) << rest.err;
  const Finished clipped = run("generate", {"-p", "Hi", "--no-chat-template", "-n", "8000", "-c", "40"});
  EXPECT_EQ(clipped.exit_code, 0);
  EXPECT_NE(clipped.err.find("output    38 tokens, "), std::string::npos) << clipped.err;
  EXPECT_NE(clipped.err.find("(length: the context is full before the 8,000 of -n)"), std::string::npos) << clipped.err;
}

TEST_F(ProgramTest, ABatchIsSkippedWhereItIsDone) {
  const std::string a = folder_->write("batch/a.txt", "First."), b = folder_->write("batch/b.txt", "Second."),
                    out = *folder_ / "batch.jsonl";
  const std::vector<std::string> args = {*folder_ / "batch", "-o", out};
  const Finished first = run("summarize", args);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, "");
  EXPECT_NE(first.err.find("2 summarized, 0 done before, 0 failed"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("[1/2] " + a + ": "), std::string::npos) << first.err;
  EXPECT_NE(first.err.find(" left\n"), std::string::npos) << first.err;
  const std::string written = folder_->read("batch.jsonl");
  EXPECT_EQ(json_lines(written).size(), 2u);
  const Finished again = run("summarize", args);
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_NE(again.err.find("0 summarized, 2 done before, 0 failed"), std::string::npos) << again.err;
  EXPECT_EQ(folder_->read("batch.jsonl"), written);
  // Threads and memory change no answer; the seed and the length may.
  EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "-t", "2", "--kv", "host"}).err.find("2 done before"),
            std::string::npos);
  // What may change the text is another summary; what may not, is the same.
  EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "--verify", "lossless"}).err.find("2 done before"),
            std::string::npos);
  EXPECT_NE(
      run("summarize", {*folder_ / "batch", "-o", out, "--verify", "approximate"}).err.find("2 summarized, 0 done"),
      std::string::npos);
  EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "-n", "13"}).err.find("2 summarized"), std::string::npos);
  EXPECT_EQ(json_lines(folder_->read("batch.jsonl")).size(), 6u);
}

TEST_F(ProgramTest, BenchMeasuresAModel) {
  const std::string out = *folder_ / "bench.json";
  const std::vector<std::string> args = {"bench",     "-m",         model_,   "-n", "3",      "-t",
                                         "1",         "--device",   "cpu",    "-p", "20,600", "--kv",
                                         "auto,host", "--host-mem", "128MiB", "-o", out};
  const Finished table = run_program(args);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* part : {"GB/s to the device", "prefill ms", "     20   auto ", "    600   host "}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << "\n" << table.out;
  }
  const json written = json::parse(folder_->read("bench.json"));
  EXPECT_EQ(written["model"], model_);
  ASSERT_EQ(written["rows"].size(), 4u);
  EXPECT_EQ(written["rows"][3]["decode"]["steps"], 3);
  EXPECT_GT(written["rows"][3]["decode"]["link_share_of_peak"], 0);
  EXPECT_GT(written["rows"][3]["prefill"]["tokens_per_s"], 0);
  EXPECT_FALSE(written["machine"]["cpu"].get<std::string>().empty());
  std::vector<std::string> quiet = args;
  quiet.insert(quiet.end(), {"--json", "-q"});
  const Finished object = run_program(quiet);
  EXPECT_EQ(object.exit_code, 0);
  EXPECT_EQ(object.err, "");
  EXPECT_EQ(object.out, folder_->read("bench.json"));
}

TEST_F(ProgramTest, ABenchTracesItsRowsAndNotItsWarmUp) {
  const Finished finished =
      run_program({"bench", "-m", model_, "-n", "3", "-t", "1", "--device", "cpu", "-p", "20", "--kv", "auto,host",
                   "--host-mem", "128MiB", "--trace", *folder_ / "bench_trace.json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.err.find("bench_trace.json: 6 of 6 decode steps"), std::string::npos) << finished.err;
  const testing::ReadTrace read = testing::read_trace(folder_->read("bench_trace.json"));
  EXPECT_EQ(read.count("step"), 6);
  EXPECT_EQ(read.one("20 tokens, --kv host").track, "run");
}

TEST_F(ProgramTest, BenchOfAShapeNeedsNoFile) {
  EXPECT_NE(run_program({"bench", "--list-shapes"}).out.find("\nllama-3.1-8b "), std::string::npos);
  const Finished table =
      run_program({"bench", "--shape", "smollm2-135m", "-p", "16", "-n", "2", "--device", "cpu", "-t", "2"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_TRUE(table.out.starts_with("smollm2-135m with random weights, bf16, on CPU")) << table.out;
  const Finished unknown = run_program({"bench", "--shape", "llama-9"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("llama-3.1-8b"), std::string::npos) << unknown.err;
  const Finished full = run_program({"bench", "--shape", "smollm2-135m", "--device", "cpu", "--host-mem", "64MiB"});
  EXPECT_EQ(full.exit_code, 4);
  EXPECT_NE(full.err.find("weights"), std::string::npos) << full.err;
  const Finished gone = run_program({"bench", "-m", model_, "-o", folder_->path() + "/gone/x.json"});
  EXPECT_EQ(gone.exit_code, 5);
  EXPECT_NE(gone.err.find("/gone/x.json: cannot be written"), std::string::npos) << gone.err;
}

TEST_F(ProgramTest, ABenchThatFailsLeavesOldResultsAndNoNewFile) {
  const std::string old = folder_->write("old.json", "{\"rows\": \"of yesterday\"}\n");
  const std::string fresh = *folder_ / "fresh.json";
  for (const std::string& out : {old, fresh}) {
    EXPECT_EQ(run_program({"bench", "-m", folder_->path() + "/no-model", "-o", out}).exit_code, 3) << out;
  }
  EXPECT_EQ(folder_->read("old.json"), "{\"rows\": \"of yesterday\"}\n");
  EXPECT_FALSE(std::filesystem::exists(fresh));
  const std::vector<std::string> right = {"bench", "-m", model_, "-n", "1", "-t", "1", "--device", "cpu", "-p", "8"};
  folder_->write("old.json", std::string(1 << 20, 'x'));  // longer than what comes
  std::vector<std::string> args = right;
  args.insert(args.end(), {"--kv", "auto", "-o", old});
  EXPECT_EQ(run_program(args).exit_code, 0);
  EXPECT_EQ(json::parse(folder_->read("old.json"))["rows"].size(), 1u);
}

TEST_F(ProgramTest, BenchOfWhatDoesNotFitSaysSoInItsRow) {
  const Finished table = run_program({"bench", "-m", model_, "-p", "20,400000", "-n", "2", "--kv", "device", "--device",
                                      "cpu", "--host-mem", "128MiB"});
  EXPECT_EQ(table.exit_code, 4);
  EXPECT_NE(table.out.find("400,000 device  does not fit: "), std::string::npos) << table.out;
}

}  // namespace
}  // namespace headrace
