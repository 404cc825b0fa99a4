// Where the program writes: files of the user's that it must not touch, descriptors that are closed, limits on sizes,
// outputs among the documents, names that a terminal would obey.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cli/program_fixture.h"
#include "tests/support/trace_reader.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

RunOptions with_closed(std::vector<int> closed) {
  return {.input = "", .environment = {}, .stdout_path = "", .closed = std::move(closed)};
}
RunOptions with_limit(uint64_t bytes) {
  return {.input = "", .environment = {}, .stdout_path = "", .closed = {}, .file_bytes = bytes};
}

TEST_F(ProgramTest, AWrongModelChangesNoResults) {
  const std::string a = folder_->write("wrong/a.txt", "First."), out = *folder_ / "wrong.jsonl";
  const std::string gone = *folder_ / "gone";
  ASSERT_EQ(run("summarize", {a, gone, "-o", out}).exit_code, 3);  // a result and an error
  const std::string torn = folder_->read("wrong.jsonl") + "{\"file\":\"x\",\"ke";
  for (const std::string& text : {torn, std::string("{\"my\": \"only copy\"}"), std::string("my notes\n")}) {
    folder_->write("wrong.jsonl", text);
    EXPECT_EQ(run_program({"summarize", a, gone, "-m", gone, "-o", out}).exit_code, 3);
    EXPECT_EQ(folder_->read("wrong.jsonl"), text);
    if (text == torn) continue;
    const Finished refused = run("summarize", {a, "-o", out});
    EXPECT_EQ(refused.exit_code, 3);
    EXPECT_NE(refused.err.find(out + ": line 1 is not a result line of this program"), std::string::npos)
        << refused.err;
    EXPECT_EQ(folder_->read("wrong.jsonl"), text);
  }
  EXPECT_EQ(run_program({"summarize", a, "-m", gone, "-o", *folder_ / "never.jsonl"}).exit_code, 3);
  EXPECT_FALSE(fs::exists(*folder_ / "never.jsonl"));
  folder_->write("wrong.jsonl", torn);
  const Finished again = run("summarize", {a, gone, "-o", out});
  EXPECT_NE(again.err.find("0 summarized, 1 done before, 1 failed"), std::string::npos) << again.err;
  EXPECT_EQ(json_lines(folder_->read("wrong.jsonl")).size(), 2u);
}

TEST_F(ProgramTest, ResultsCanGoToStdout) {
  const std::string a = folder_->write("stdout/a.txt", "First."), b = folder_->write("stdout/b.txt", "Second.");
  const Finished finished = run("summarize", {a, b, "-o", "-", "-q"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<json> lines = json_lines(finished.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["file"], b);
  EXPECT_FALSE(fs::exists("-"));
}

// Otherwise the next file that is opened has the number, and text or progress is written into it.
TEST_F(ProgramTest, ClosedDescriptorsLeadIntoNoFile) {
  const std::string a = folder_->write("closed/a.txt", std::string(600, 'x')), out = *folder_ / "closed.jsonl",
                    trace = *folder_ / "closed.json", cache = *folder_ / "closed-cache";
  for (const std::vector<int>& closed : {std::vector<int>{0, 1, 2}, {2}, {1}, {0}}) {
    for (const std::string& path : {out, trace, cache}) fs::remove_all(path);
    const Finished finished =
        run("summarize", {a, "-o", out, "--trace", trace, "--prefix-cache", cache + ":64MiB"}, with_closed(closed));
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_EQ(json_lines(folder_->read("closed.jsonl")).size(), 1u);
    testing::read_trace(folder_->read("closed.json"));
    EXPECT_EQ(folder_->read("closed-cache/headrace-prefix-cache.lock"), "");
    EXPECT_EQ(run_program({"cache", "verify", cache}).exit_code, 0);
  }
}

TEST_F(ProgramTest, ClosedDescriptorsFailWhereTheyAreNeeded) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"generate", "-m", model_, "-p", "Hello", "-n", "2"},
        {"--help"},
        {"inspect", model_}}) {
    const Finished no_output = run_program(args, with_closed({1}));
    EXPECT_EQ(no_output.exit_code, 5) << json(args).dump();
    EXPECT_NE(no_output.err.find("error: standard output: cannot be written"), std::string::npos) << no_output.err;
  }
  const Finished no_input = run("generate", {"-f", "-"}, with_closed({0}));
  EXPECT_EQ(no_input.exit_code, 3);
  EXPECT_NE(no_input.err.find("standard input: cannot be read"), std::string::npos) << no_input.err;
}

// As a full disk does; a signal would end the program with nothing said.
TEST_F(ProgramTest, ALimitOnFileSizesIsAStorageError) {
  const std::string a = folder_->write("limit/a.txt", "First."), out = *folder_ / "limit.jsonl";
  const auto too_large = [](const Finished& finished, const std::string& file) {
    EXPECT_EQ(finished.exit_code, 5) << finished.signal << finished.err;
    EXPECT_NE(finished.err.find(file), std::string::npos) << finished.err;
    EXPECT_NE(finished.err.find("File too large"), std::string::npos) << finished.err;
  };
  const Finished results = run("summarize", {a, "-o", out}, with_limit(100));
  too_large(results, out + ": cannot be written");
  EXPECT_NE(results.err.find("ulimit -f"), std::string::npos) << results.err;
  EXPECT_EQ(run("summarize", {a, "-o", out}).exit_code, 0);
  EXPECT_EQ(json_lines(folder_->read("limit.jsonl")).size(), 1u);
  too_large(run("generate", {"-p", "Hello", "--trace", *folder_ / "limit.json"}, with_limit(100)), "limit.json");
  too_large(run_program({"bench", "-m", model_, "-n", "1", "-p", "8", "-t", "1", "--device", "cpu", "-o",
                         *folder_ / "limit-bench.json"},
                        with_limit(100)),
            "limit-bench.json");
  const std::string stdout_file = folder_->write("limit.txt", "");
  RunOptions to_file = with_limit(100);
  to_file.stdout_path = stdout_file;
  too_large(run("generate", {"-p", "Hello", "--json"}, to_file), "standard output");
}

// A saved prefix is no part of the answer: that it cannot be kept is a line.
TEST_F(ProgramTest, ALimitOnFileSizesKeepsPrefixesOutOfACache) {
  const std::string cache = *folder_ / "limit-cache";
  const std::vector<std::string> args = {"-p", std::string(600, 'x'), "--prefix-cache", cache + ":64MiB"};
  const Finished limited = run("generate", args, with_limit(1000));
  EXPECT_EQ(limited.exit_code, 0) << limited.signal << limited.err;
  EXPECT_NE(limited.err.find("File too large"), std::string::npos) << limited.err;
  EXPECT_EQ(run("generate", args).out, limited.out);
}

TEST_F(ProgramTest, ALimitOnFileSizesIsNoRoomForSpilling) {
  const TemporaryFolder disk;
  const std::string prompt(1100, 'x');
  std::vector<std::string> args = {"-p",      prompt,    "--no-chat-template", "--kv", "host", "--json", "--host-mem",
                                   "1400KiB", "--spill", disk.path() + ":1GiB"};
  // The least memory with which it spills.
  for (uint64_t kib = 256; kib <= 64 * 1024; kib += kib / 8) {
    args[7] = std::to_string(kib) + "KiB";
    const Finished whole = run("generate", args);
    if (whole.exit_code != 0) continue;
    ASSERT_TRUE(json::parse(whole.out).contains("spill")) << kib;
    const Finished limited = run("generate", args, with_limit(1000));
    EXPECT_EQ(limited.exit_code, 5) << limited.signal << limited.err;
    EXPECT_NE(limited.err.find("File too large"), std::string::npos) << limited.err;
    EXPECT_NE(limited.err.find("ulimit -f"), std::string::npos) << limited.err;
    EXPECT_TRUE(fs::is_empty(disk.path()));
    return;
  }
  ADD_FAILURE() << "nothing spilled";
}

TEST_F(ProgramTest, OutputsAmongTheDocumentsAreNoDocuments) {
  folder_->write("among/a.txt", "First.");
  folder_->write("among/part/b.txt", "Second.");
  const std::string docs = *folder_ / "among";
  const std::vector<std::string> args = {docs,
                                         docs + "/out.jsonl",
                                         "-o",
                                         docs + "/part/../out.jsonl",
                                         "--trace",
                                         docs + "/part/t.json",
                                         "--prefix-cache",
                                         docs + "/cache:64MiB"};
  for (const char* outcome : {"2 summarized, 0 done before, 0 failed", "0 summarized, 2 done before, 0 failed"}) {
    const Finished finished = run("summarize", args);
    EXPECT_NE(finished.err.find(outcome), std::string::npos) << finished.err;
    if (!fs::exists(docs + "/link.jsonl")) fs::create_symlink("out.jsonl", docs + "/link.jsonl");
    if (!fs::exists(docs + "/hard.jsonl")) fs::create_hard_link(docs + "/out.jsonl", docs + "/hard.jsonl");
  }
  EXPECT_EQ(json_lines(folder_->read("among/out.jsonl")).size(), 2u);
  // What is said of one.txt is said after all documents were read.
  const std::string one = folder_->write("quality/one.txt", "First.");
  const Finished quality = run_program({"bench", "quality", "-m", model_, "-p", "8", "--documents",
                                        *folder_ / "quality", "-o", *folder_ / "quality/q.json"});
  EXPECT_EQ(quality.exit_code, 2) << quality.err;
  EXPECT_EQ(quality.err.find("q.json"), std::string::npos) << quality.err;
}

TEST_F(ProgramTest, ATerminalIsShownNoControlCharacters) {
  const std::string a = folder_->write("names/a\x1b[31m\x07.txt", "First."), b = *folder_ / "names/gone\n\x1b]0;x\x07",
                    c = folder_->write("names/\xc2\x9b\xff.txt", "Third.");
  const Finished text = run("summarize", {a, b, c});
  const Finished batch = run("summarize", {a, b, c, "-o", *folder_ / "names.jsonl"});
  const Finished failed = run("generate", {"-f", b});
  for (const std::string& shown : {text.out, text.err, batch.err, failed.err}) {
    for (const char* bad : {"\x1b", "\x07", "\xc2\x9b"}) EXPECT_EQ(shown.find(bad), std::string::npos) << shown;
  }
  EXPECT_NE(text.out.find("a\\x1b[31m\\x07.txt <=="), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("gone\\x0a\\x1b]0;x\\x07 <=="), std::string::npos) << text.out;
  EXPECT_NE(batch.err.find("\\xc2\\x9b\\xff.txt: "), std::string::npos) << batch.err;
  EXPECT_NE(failed.err.find("gone\\x0a\\x1b]0;x\\x07: cannot be opened"), std::string::npos) << failed.err;
}

// Neither is read to its end, which one of them has not.
TEST_F(ProgramTest, ADocumentThatCannotFitIsNotRead) {
  const std::string sparse = folder_->write("sparse.txt", "x");
  fs::resize_file(sparse, uint64_t{1} << 40);
  for (const std::string& file : {std::string("/dev/zero"), sparse}) {
    for (const std::vector<std::string>& args : {std::vector<std::string>{"summarize", file},
                                                 {"summarize", file, "--truncate", "middle"},
                                                 {"generate", "-f", file}}) {
      std::vector<std::string> whole = args;
      whole.insert(whole.end(), {"-m", model_, "-c", "1000"});
      const Finished finished = run_program(whole);
      EXPECT_EQ(finished.exit_code, 3) << finished.signal;
      EXPECT_NE(finished.err.find(file + ": has "), std::string::npos) << finished.err;
      if (args.size() == 2) {
        EXPECT_NE(finished.err.find("no text of more than 65536 fits a context of 1000 tokens"), std::string::npos)
            << finished.err;
      }
    }
  }
  const std::string prompt = folder_->write("prompt.txt", std::string(100'000, 'x'));
  const Finished long_prompt = run("generate", {"-f", prompt, "-c", "1000"});
  EXPECT_EQ(long_prompt.exit_code, 3);
  EXPECT_NE(long_prompt.err.find(prompt + ": has "), std::string::npos) << long_prompt.err;
}

// Other files beside the weights may change; what a text depends on may not.
TEST_F(ProgramTest, ABatchGoesOnBesideOtherFilesOfTheModel) {
  const std::string a = folder_->write("beside/a.txt", "First."), out = *folder_ / "beside.jsonl";
  EXPECT_EQ(run("summarize", {a, "-o", out}).exit_code, 0);
  folder_->write("model/README.md", "of this model");
  EXPECT_EQ(run("summarize", {a, "-o", out}).exit_code, 0);
  EXPECT_EQ(json_lines(folder_->read("beside.jsonl")).size(), 1u);
  fs::last_write_time(model_ + "/tokenizer.json",
                      fs::last_write_time(model_ + "/tokenizer.json") + std::chrono::seconds(1));
  EXPECT_EQ(run("summarize", {a, "-o", out}).exit_code, 0);
  EXPECT_EQ(json_lines(folder_->read("beside.jsonl")).size(), 2u);
}

TEST_F(ProgramTest, ADocumentMayBeANamedPipe) {
  const std::string pipe = *folder_ / "pipe", file = folder_->write("piped.txt", std::string(300, 'x'));
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << std::string(300, 'x'); });
  const Finished finished = run("summarize", {pipe, "-q"});
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);  // a writer that the program left waiting goes on
  writer.join();
  ::close(reader);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out, run("summarize", {file, "-q"}).out);
}

}  // namespace
}  // namespace headrace
