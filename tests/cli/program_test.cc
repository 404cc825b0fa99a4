// The program as a user meets it: streams, exit codes, JSON, environment, traces.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trace_reader.h"

namespace headrace {
namespace {

using nlohmann::json;

TEST_F(ProgramTest, HelpAndVersionGoToStdout) {
  const Finished help = run_program({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("summarize"), std::string::npos);
  EXPECT_EQ(help.err, "");
  const Finished version = run_program({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(version.out.starts_with("headrace ")) << version.out;
  const bool cuda = version.out.ends_with("(CPU and CUDA)\n");
  EXPECT_TRUE(cuda || version.out.ends_with("(CPU only, built without CUDA)\n")) << version.out;
  EXPECT_EQ(cuda, run_program({"--list-devices"}).out.find("no CUDA backend") == std::string::npos);
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

TEST_F(ProgramTest, APresetSaysOnceWhatDiffersFromItsPaper) {
  const std::vector<std::string> flags = {"--preset", "specpv", "--spec-type", "ngram-simple"};
  const auto notes = [&](const std::string& command, std::vector<std::string> args) {
    args.insert(args.end(), flags.begin(), flags.end());
    const Finished finished = run(command, args);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    int count = 0;
    const std::string text = "note: preset specpv (SpecPV, arXiv 2512.02337); what differs";
    for (size_t at = finished.err.find(text); at != std::string::npos; at = finished.err.find(text, at + 1)) ++count;
    return count;
  };
  const TemporaryFolder folder;
  folder.write("a.txt", "One text.");
  folder.write("b.txt", "Another text.");
  EXPECT_EQ(notes("generate", {"-p", "Hello"}), 1);
  EXPECT_EQ(notes("summarize", {folder / "a.txt", folder / "b.txt"}), 1);
  EXPECT_EQ(notes("generate", {"-p", "Hello", "--quiet"}), 0);
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
      {{"generate", "-m", model_, "-p", "x", "--spill", folder + ":nonsense"},
       2,
       {"--spill", "'nonsense' is not a size"}},
      {{"generate", "-m", model_, "-p", "x", "--prefix-cache", folder + "/pc:"},
       2,
       {"--prefix-cache", "'' is not a size"}},
      {{"cache", "list", ""}, 2, {"headrace cache list: DIR is empty", "headrace cache list --help"}},
      {{"cache", "foo"}, 2, {"'foo' is not one of its commands: list, verify, prune"}},
      {{"cache", "prune", folder, "--to", "much"}, 2, {"--to", "headrace cache prune --help"}},
      {{"summarize", folder + "/gone.txt", "-m", model_}, 3, {folder + "/gone.txt"}},
      {{"summarize", hello, "-m", model_, "-c", "16"}, 3, {hello, "16", "--truncate middle"}},
      {{"generate", "-m", model_, "-p", "x", "--host-mem", "100KiB"}, 4, {"100.00 KiB"}},
      {{"generate", "-m", model_, "-p", "x", "--vram", "64KiB"}, 4, {"64.00 KiB"}},
      {{"generate", "-m", model_, "-p", "x", "--vram", "64KiB", "--weights-place", "host"},
       4,
       {"64.00 KiB", "a ring of two layers", "raise --vram"}},
      {{"generate", "-m", model_, "-p", "x", "--weights-place", "disk"}, 2, {"--weights-place", "disk"}},
      {{"generate", "-m", model_, "-p", "x", "--weights-substitute", "q2_k"},
       2,
       {"--weights-substitute", "q2_k", "auto, none, q8_0, q6_k, q5_k"}},
      {{"generate", "-m", model_, "-p", "x", "--weights-substitute", "q4_k"},
       2,
       {"--weights-substitute", "Q4_K takes no less than the layers of"}},
      {{"generate", "-m", model_, "-p", "x", "--weights-substitute", "q8_0", "--verify", "approximate"},
       2,
       {"--weights-substitute", "Q8_0 is not for --verify approximate"}},
      {{"generate", "-m", model_, "-p", "x", "--spill", folder + "/gone:1GiB"}, 5, {folder + "/gone:"}},
      {{"generate", "-m", model_, "-p", "x", "--spill", hello}, 5, {hello, "(ENOTDIR)", "name a folder"}},
      {{"generate", "-m", model_, "-p", "x", "--trace", folder + "/gone/t.json"}, 5, {folder + "/gone/t.json"}},
      {{"generate", "-m", model_, "-p", "x", "--trace", folder}, 5, {folder, "directory"}},
      {{"summarize", latin, "-m", model_, "--trace", hello}, 3, {hello, "is not a trace"}},
      {{"summarize", hello, "-m", model_, "--trace", hello}, 2, {hello, "is a file that this run writes to"}},
      {{"summarize", hello, "-m", model_, "-o", folder + "/gone/out.jsonl"}, 5, {folder + "/gone/out.jsonl"}},
      {{"summarize", latin, "-m", model_, "-o", hello}, 3, {hello, "line 1"}},
      {{"summarize", hello, "-m", model_, "-o", hello}, 2, {hello, "is a file that this run writes to"}},
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

TEST_F(ProgramTest, SaysTheSameWithItsWeightsInHostMemory) {
  const auto say = [&](const std::string& place) {
    const Finished finished =
        run("generate", {"-p", "Hello", "--no-chat-template", "-n", "8", "--weights-place", place, "--json"});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return json::parse(finished.out);
  };
  const json there = say("host"), usual = say("device");
  EXPECT_EQ(there["token_ids"], usual["token_ids"]);
  EXPECT_FALSE(usual["memory"].contains("host_weights_bytes"));
  const uint64_t bytes = there["memory"]["host_weights_bytes"];
  EXPECT_GT(bytes, 0u);
  EXPECT_GE(there["transfers"]["decode_h2d_bytes"], bytes * 7);  // of each step
}

TEST_F(ProgramTest, SaysTheSameWithSubstitutes) {
  const auto say = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"-p", "Hello", "--no-chat-template", "-n", "24", "--ignore-eos", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished finished = run("generate", args);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return json::parse(finished.out);
  };
  const json usual = say({});
  const json there = say({"--weights-place", "host", "--weights-substitute", "q8_0"});
  EXPECT_EQ(there["token_ids"], usual["token_ids"]);
  EXPECT_FALSE(usual["memory"].contains("substitute_bytes"));
  EXPECT_GT(there["memory"]["substitute_bytes"], 0);
  EXPECT_EQ(there["speculation"]["verify"], "lossless");
  EXPECT_EQ(there["speculation"]["partial_kv"], "exact");
  EXPECT_EQ(there["speculation"]["weights_substitute"], "Q8_0");
  EXPECT_GT(there["speculation"]["modes"]["partial"]["steps"], 0);
  const json none = say({"--weights-place", "host", "--weights-substitute", "none"});
  EXPECT_EQ(none["token_ids"], usual["token_ids"]);
  EXPECT_FALSE(none["memory"].contains("substitute_bytes"));
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
  EXPECT_NE(text.out.find("24 GiB hold the weights and the KV cache of all 1,000,000 tokens\n"), std::string::npos)
      << text.out;  // not of more tokens than the model reads
  const json line = json::parse(run_program({"inspect", model_, "--json"}).out);
  EXPECT_GT(line["tokens_in_24_gib"], 1000000);
  EXPECT_EQ(line["layers"], 4);
  EXPECT_EQ(line["kv_bytes_per_token"], 2 * 4 * line["kv_heads"].get<int>() * line["head_dim"].get<int>() * 4);  // f32
  EXPECT_EQ(line["max_positions"], 1000000);
  EXPECT_FALSE(line.contains("tensors"));
}

TEST_F(ProgramTest, AModelThatTakesImagesReadsTextAlone) {
  const TemporaryFolder folder;
  const std::string model = folder / "model";
  std::filesystem::copy(HEADRACE_TEST_DATA "/tiny/mistral3", model);
  std::filesystem::copy_file(model_ + "/tokenizer.json", model + "/tokenizer.json");
  const Finished text = run_program({"inspect", model, "--tensors"});
  EXPECT_NE(text.out.find("images      not read"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("vision"), std::string::npos) << text.out;
  const std::vector<std::string> generate = {"generate", "-m", model, "-p", "Hi", "-n", "2", "--no-chat-template"};
  const Finished said = run_program(generate);
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_NE(said.err.find("note: the model's vision part is not loaded"), std::string::npos) << said.err;
}

TEST_F(ProgramTest, InterpretsTemplates) {
  const TemporaryFolder folder;
  const std::string messages = folder.write("m.json", R"([{"role": "user", "content": "Hi <s>"}])");
  const std::string chat = folder.write(
      "t.jinja", "{% for m in messages %}\n[{{ m.role }}] {{ m.content }}\n{% endfor %}\n{{ enable_thinking }}");
  const std::string bad = folder.write("bad.jinja", "a\n{{ x.y }}");
  const auto render = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"inspect", model_, "--render", messages});
    return run_program(more);
  };
  EXPECT_EQ(render({"--chat-template-file", chat}).out, "[user] Hi <s>\nFalse");
  EXPECT_EQ(render({"--chat-template-file", chat, "--thinking"}).out, "[user] Hi <s>\nTrue");
  const Finished none = render({}), failed = render({"--chat-template-file", bad});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_NE(none.err.find("has no chat template"), std::string::npos) << none.err;
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_NE(failed.err.find(bad + ":2: 'x' is undefined"), std::string::npos) << failed.err;

  const auto line = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", model_, "-p", "Hi", "-n", "1", "--json", "-q"});
    const Finished run = run_program(more);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return json::parse(run.out);
  };
  const json interpreted = line({"--chat-template-file", chat});
  EXPECT_EQ(interpreted["chat_template"], chat);
  EXPECT_EQ(interpreted["prompt_tokens"], 15);  // "[user] Hi\nFalse", one a byte
  EXPECT_EQ(line({"--chat-template-file", chat, "--thinking"})["prompt_tokens"], 14);
  EXPECT_EQ(line({"--no-chat-template"})["chat_template"], "none");
}

}  // namespace
}  // namespace headrace
