// Ctrl-C on a terminal and kill -9 in the middle of a batch: what was done is kept, what was not is done by a rerun.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
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

class Interruption : public ::testing::Test {
 protected:
  void SetUp() override { write_tiny_model(model_); }

  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> args = {name, "-m", model_, "--ignore-eos", "-t", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  void write_documents(int count) const {
    for (int i = 0; i < count; ++i) folder_.write("docs/" + std::to_string(100 + i), "Document " + std::to_string(i));
  }

  // Each document's text by its file; fails if a line is no JSON or a document is there twice.
  std::map<std::string, std::string> results(const std::string& name) const {
    std::map<std::string, std::string> found;
    std::istringstream in(folder_.read(name));
    for (std::string line; std::getline(in, line);) {
      const json parsed = json::parse(line);
      EXPECT_FALSE(parsed.contains("error")) << line;
      EXPECT_TRUE(found.emplace(parsed["file"], parsed["text"]).second) << "twice: " << parsed["file"];
    }
    return found;
  }

  TemporaryFolder folder_;
  const std::string model_ = folder_ / "model", out_ = folder_ / "out.jsonl";
};

TEST_F(Interruption, CtrlCPrintsWhatThereIsAndExits130) {
  SKIP_WITHOUT_A_TERMINAL();
  const std::vector<std::string> args = command("generate", {"-p", "Hello", "-n", "400000", "-c", "500000"});
  Program program(args, Program::Streams::kTerminal);
  ASSERT_TRUE(program.read_bytes(500));  // some of the text
  program.type("\x03");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 130) << finished.out;
  EXPECT_NE(finished.out.find("Interrupted: finishing the current step"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("(interrupted)"), std::string::npos) << finished.out;
}

TEST_F(Interruption, WhatIsPrintedIsTheBeginningOfTheWhole) {
  SKIP_WITHOUT_A_TERMINAL();
  // As JSON, where the ids can be told from the rest, and where a bar shows that decoding has begun.
  std::vector<std::string> args = command("generate", {"-p", "Hello", "-n", "400000", "-c", "500000", "--json"});
  Program program(args, Program::Streams::kTerminal);
  ASSERT_TRUE(program.read_until("decode"));
  program.type("\x03");
  const Finished finished = program.wait();
  ASSERT_EQ(finished.exit_code, 130) << finished.out;
  const size_t begin = finished.out.find("{\"text\"");
  ASSERT_NE(begin, std::string::npos) << finished.out;
  const json cut = json::parse(finished.out.substr(begin, finished.out.find('\r', begin) - begin));
  EXPECT_EQ(cut["finish_reason"], "interrupted");
  const size_t count = cut["token_ids"].size();
  ASSERT_GT(count, 0u);
  args[args.size() - 4] = std::to_string(count);  // -n
  ASSERT_EQ(args[args.size() - 5], "-n");
  args.insert(args.end(), "-q");
  const Finished whole = run_program(args);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(json::parse(whole.out)["token_ids"], cut["token_ids"]);
}

TEST_F(Interruption, CtrlCWritesTheTraceOfWhatWasDone) {
  SKIP_WITHOUT_A_TERMINAL();
  // As where a script runs the tests in the background.
  const auto before = ::signal(SIGINT, SIG_IGN);
  Program program(command("generate", {"-p", "Hello", "-n", "400000", "-c", "500000", "--trace", folder_ / "t.json"}),
                  Program::Streams::kTerminal);
  ::signal(SIGINT, before);
  ASSERT_TRUE(program.read_bytes(500));
  program.type("\x03");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 130) << finished.out;
  EXPECT_NE(finished.out.find("t.json: 32 of "), std::string::npos) << finished.out;
  const testing::ReadTrace read = testing::read_trace(folder_.read("t.json"));
  EXPECT_EQ(read.count("step"), 32);
  EXPECT_GT(read.other["dropped_decode_steps"], 0);
}

TEST_F(Interruption, CtrlCInPrefillExitsToo) {
  SKIP_WITHOUT_A_TERMINAL();
  const std::string file = folder_.write("long.txt", std::string(60000, 'x'));
  Program program(command("generate", {"-f", file, "-n", "5"}), Program::Streams::kTerminal);
  ASSERT_TRUE(program.read_until("prefill"));
  program.type("\x03");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 130) << finished.out;
}

// A named pipe that nobody writes to, and one that is open for writing and stays empty.
TEST_F(Interruption, CtrlCWhileAPipeIsWaitedForExits130) {
  SKIP_WITHOUT_A_TERMINAL();
  const std::string pipe = folder_ / "pipe", first = folder_.write("a.txt", "First.");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const bool open : {false, true}) {
    const int writer = open ? ::open(pipe.c_str(), O_RDWR) : -1;
    Program summarize(command("summarize", {first, pipe, "-n", "2"}), Program::Streams::kTerminal);
    ASSERT_TRUE(summarize.read_until("pipe <=="));
    summarize.type("\x03");
    const Finished finished = summarize.wait();
    EXPECT_EQ(finished.exit_code, 130) << finished.signal << finished.out;
    if (open) ::close(writer);
  }
}

TEST_F(Interruption, ABatchWhoseResultsAreMovedAwayEnds) {
  SKIP_WITHOUT_A_TERMINAL();
  write_documents(6);
  Program program(command("summarize", {folder_ / "docs", "-n", "400", "-o", folder_ / "out.jsonl"}),
                  Program::Streams::kTerminal);
  ASSERT_TRUE(wait_for_lines(out_, 1, &program));
  std::filesystem::rename(folder_ / "out.jsonl", folder_ / "moved.jsonl");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 5) << finished.out;
  EXPECT_NE(finished.out.find("out.jsonl: was replaced or removed"), std::string::npos) << finished.out;
  EXPECT_GE(results("moved.jsonl").size(), 1u);
  EXPECT_EQ(lines_written(out_), 0u);
}

TEST_F(Interruption, ABarOnATerminalShowsRateAndTimeLeft) {
  SKIP_WITHOUT_A_TERMINAL();
  const std::string file = folder_.write("long.txt", std::string(60000, 'x'));
  Program program(command("generate", {"-f", file, "-n", "5"}), Program::Streams::kTerminal);
  EXPECT_TRUE(program.read_until("\r\x1b[K["));
  EXPECT_TRUE(program.read_until("tokens/s"));
  EXPECT_TRUE(program.read_until(" left"));
  program.send(SIGKILL);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.signal, SIGKILL);
}

TEST_F(Interruption, QuietShowsNothingOfIt) {
  SKIP_WITHOUT_A_TERMINAL();
  Program program(command("generate", {"-f", folder_.write("p.txt", std::string(3000, 'x')), "-n", "5", "-q"}),
                  Program::Streams::kTerminal);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_EQ(finished.out.find('\x1b'), std::string::npos) << finished.out;
  EXPECT_EQ(finished.out.find("prompt"), std::string::npos) << finished.out;
}

TEST_F(Interruption, KillNineInABatchLosesNothingAndRepeatsNothing) {
  constexpr int kDocuments = 10;
  write_documents(kDocuments);
  const std::vector<std::string> base = {folder_ / "docs", "-n", "200", "-q", "-o"};
  const auto with_output = [&](const std::string& name) {
    std::vector<std::string> more = base;
    more.push_back(folder_ / name);
    return command("summarize", more);
  };
  ASSERT_EQ(run_program(with_output("undisturbed.jsonl")).exit_code, 0);
  const auto wanted = results("undisturbed.jsonl");
  ASSERT_EQ(wanted.size(), static_cast<size_t>(kDocuments));
  for (size_t lines : {1, 3, 4}) {  // three times, each a little further on
    Program program(with_output("out.jsonl"), Program::Streams::kNone);
    ASSERT_TRUE(wait_for_lines(out_, lines, &program));
    program.send(SIGKILL);
    EXPECT_EQ(program.wait().signal, SIGKILL);
  }
  const size_t before = lines_written(out_);
  EXPECT_LT(before, static_cast<size_t>(kDocuments)) << "too quick to be killed in the middle";
  ASSERT_EQ(run_program(with_output("out.jsonl")).exit_code, 0);
  EXPECT_EQ(results("out.jsonl"), wanted);
}

TEST_F(Interruption, CtrlCInABatchKeepsWholeDocumentsOnly) {
  SKIP_WITHOUT_A_TERMINAL();
  constexpr int kDocuments = 6;
  write_documents(kDocuments);
  const std::vector<std::string> args =
      command("summarize", {folder_ / "docs", "-n", "400", "-o", folder_ / "out.jsonl"});
  Program program(args, Program::Streams::kTerminal);
  ASSERT_TRUE(wait_for_lines(out_, 2, &program));
  program.type("\x03");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 130) << finished.out;
  EXPECT_NE(finished.out.find("interrupted, the same command continues"), std::string::npos) << finished.out;
  const size_t kept = results("out.jsonl").size();
  EXPECT_GE(kept, 2u);
  EXPECT_LT(kept, static_cast<size_t>(kDocuments));
  ASSERT_EQ(run_program(args).exit_code, 0);
  const auto all = results("out.jsonl");
  EXPECT_EQ(all.size(), static_cast<size_t>(kDocuments));
  for (const auto& [file, text] : all) EXPECT_GT(text.size(), 100u) << file;  // none cut short
}

}  // namespace
}  // namespace headrace
