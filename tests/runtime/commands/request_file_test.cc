// Files of requests: their lines, their order, their shards, and the results that shards are joined from.
#include "runtime/commands/request_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/commands/batch.h"
#include "runtime/commands/batch_merge.h"
#include "runtime/requests/response.h"
#include "tests/support/refusal.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;

std::string line_of(const std::string& id, const std::string& prompt = "hello") {
  return json{{"custom_id", id},
              {"method", "POST"},
              {"url", "/v1/completions"},
              {"body", {{"model", "m"}, {"prompt", prompt}}}}
             .dump() +
         "\n";
}

class Requests : public ::testing::Test {
 protected:
  RequestFile open(const std::string& text) { return RequestFile(folder_.write("in.jsonl", text)); }

  std::vector<std::string> ordered(const std::string& text) {
    RequestFile file = open(text);
    std::vector<RequestFile::Line> lines = file.lines();
    order_by_beginnings(&lines);
    std::vector<std::string> names;
    for (const RequestFile::Line& line : lines) names.push_back(file.name(line));
    return names;
  }

  std::vector<size_t> shared(const std::string& text) { return shared_bytes(shared_prompts(open(text).lines(), 256)); }

  TemporaryFolder folder_;
  const std::string in_ = folder_ / "in.jsonl", out_ = folder_ / "out.jsonl";
};

using RequestFiles = Requests;
using Shards = Requests;
using Merge = Requests;

TEST_F(RequestFiles, LinesAreReadAgainByTheirPlace) {
  RequestFile file = open(line_of("a") + "\n  \t\r\n" + "{bad\n" + line_of("b"));
  ASSERT_EQ(file.lines().size(), 3u);
  EXPECT_EQ(file.read(file.lines()[0]) + "\n", line_of("a"));
  EXPECT_EQ(file.read(file.lines()[1]), "{bad");
  EXPECT_EQ(file.read(file.lines()[2]) + "\n", line_of("b"));
  EXPECT_EQ(file.name(file.lines()[1]), "line 4");
  EXPECT_EQ(file.source(file.lines()[2]), in_ + ": line 5");
}

TEST_F(RequestFiles, TheLastLineMayLackItsNewline) {
  const std::string text = line_of("a") + line_of("b");
  RequestFile file = open(text.substr(0, text.size() - 1));
  EXPECT_EQ(file.read(file.lines()[1]) + "\n", line_of("b"));
}

// The lengths that are compared are 1,024, 2,048, 4,096 bytes and so on.
TEST_F(RequestFiles, NeighboursShareBeginnings) {
  const std::string system(2000, 's'), document = system + std::string(3000, 'd');
  EXPECT_EQ(shared(line_of("a", document + "1") + line_of("b", document + "2") + line_of("c", system + "3") +
                   line_of("d", "short") + line_of("e", "short") + line_of("f", document)),
            (std::vector<size_t>{0, 4096, 1024, 0, 0, 0}));
}

TEST_F(RequestFiles, LinesHaveTheSizesOfTextAndAnswer) {
  json limited = json::parse(line_of("b", "four"));
  limited["body"]["max_tokens"] = 7;
  const std::vector<SharedPrompt> prompts =
      shared_prompts(open(line_of("a", std::string(3000, 'x')) + limited.dump() + "\n{bad\n").lines(), 256);
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].bytes, 3000u);
  EXPECT_EQ(prompts[0].answer_tokens, 256);
  EXPECT_EQ(prompts[1].bytes, 4u);
  EXPECT_EQ(prompts[1].answer_tokens, 7);
  EXPECT_EQ(prompts[2].bytes, 0u);
}

TEST_F(RequestFiles, AreRefused) {
  expect_error(ExitCode::kBadInput, in_, {"lines 1 and 3", "\"a\""},
               [&] { open(line_of("a") + line_of("b") + line_of("a", "other")); });
  expect_error(ExitCode::kBadInput, in_, {"no request"}, [&] { open("\n\n"); });
  expect_error(ExitCode::kBadInput, folder_ / "none", {"cannot be opened"}, [&] { RequestFile(folder_ / "none"); });
}

// The program that converts or unpacks is named.
TEST_F(RequestFiles, OfAnotherEncodingAreOneErrorThatNamesIt) {
  const std::string line = line_of("a");
  const auto wide = [&line](size_t bytes, bool big, const std::string& mark) {
    std::string text = mark;
    for (const char c : line) {
      std::string unit(bytes, '\0');
      unit[big ? bytes - 1 : 0] = c;
      text += unit;
    }
    return text;
  };
  using namespace std::string_literals;
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {wide(2, false, "\xff\xfe"), {"UTF-16", "iconv -f UTF-16 -t UTF-8"}},
      {wide(2, true, "\xfe\xff"), {"UTF-16"}},
      {wide(2, false, ""), {"iconv -f UTF-16LE"}},
      {wide(2, true, ""), {"iconv -f UTF-16BE"}},
      {wide(4, false, "\xff\xfe\0\0"s), {"iconv -f UTF-32 "}},
      {wide(4, true, "\0\0\xfe\xff"s), {"iconv -f UTF-32 "}},
      {wide(4, false, ""), {"iconv -f UTF-32LE"}},
      {wide(4, true, ""), {"iconv -f UTF-32BE"}},
      {"\x1f\x8b\x08\0\0\0"s + line, {"gzip -dc"}},
      {"\x28\xb5\x2f\xfd\x04"s + line, {"zstd -dc"}},
      {"PK\x03\x04"s + line, {"looks like zip", "unzip -p"}}};
  for (const auto& [text, says] : cases) {
    expect_error(ExitCode::kBadInput, in_, says, [&, bytes = &text] { open(*bytes); });
  }
  EXPECT_EQ(open("\xef\xbb\xbf" + line).lines()[0].custom_id, "a");
}

TEST_F(RequestFiles, MayComeThroughAPipeButHaveAnEnd) {
  expect_error(ExitCode::kBadInput, "/dev/zero", {"268435456", "the limit for what is not a regular file"},
               [] { RequestFile("/dev/zero"); });
  ASSERT_EQ(::mkfifo(in_.c_str(), 0600), 0);
  std::thread writer([this] { std::ofstream(in_) << line_of("a") << line_of("b"); });
  RequestFile file(in_);
  writer.join();
  ASSERT_EQ(file.lines().size(), 2u);
  EXPECT_EQ(file.read(file.lines()[1]) + "\n", line_of("b"));
}

// A list of objects in a field that nothing reads: minutes for a quadratic parser.
TEST_F(RequestFiles, TimeIsLinear) {
  std::string list = "[";
  for (int i = 0; i < 300000; ++i) list += "{},";
  std::string line = line_of("a");
  line.insert(line.find("\"model\""), "\"metadata\":" + list + "0],");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(open(line).lines()[0].custom_id, "a");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 10);
}

TEST_F(RequestFiles, RequestsThatBeginAlikeFollowOneAnother) {
  const std::string x(5000, 'x'), y(5000, 'y'), z(1100, 'x');  // z begins as x does, for 1 KiB
  EXPECT_EQ(ordered(line_of("x1", x + "1") + line_of("y1", y + "1") + line_of("s", "short") + line_of("z", z) +
                    line_of("x2", x + "2") + line_of("y2", y + "2")),
            (std::vector<std::string>{"x1", "x2", "z", "y1", "y2", "s"}));
  EXPECT_EQ(ordered(line_of("b", "1") + line_of("a", "2")), (std::vector<std::string>{"b", "a"}));
}

TEST_F(Shards, EachRequestHasOneWhateverTheOrder) {
  std::string text, reversed;
  for (int i = 0; i < 60; ++i) {
    text += line_of("r" + std::to_string(i));
    reversed = line_of("r" + std::to_string(i)) + reversed;
  }
  std::set<std::string> all;
  for (int64_t index = 0; index < 4; ++index) {
    std::set<std::string> mine, again;
    RequestFile file = open(text);
    for (const auto& line : file.lines()) {
      if (file.owns(line, {index, 4})) mine.insert(line.custom_id);
    }
    RequestFile backwards = open(reversed);
    for (const auto& line : backwards.lines()) {
      if (backwards.owns(line, {index, 4})) again.insert(line.custom_id);
    }
    EXPECT_EQ(mine, again);
    EXPECT_GT(mine.size(), 5u);
    for (const std::string& id : mine) EXPECT_TRUE(all.insert(id).second) << id;
  }
  EXPECT_EQ(all.size(), 60u);
}

TEST_F(Shards, AreNamedByHandOrBySlurm) {
  EXPECT_EQ(shard_path("o", parse_shard("2/8")), "o.part-2-of-8");
  EXPECT_EQ(shard_path("o", parse_shard("0/1")), "o.part-0-of-1");
  EXPECT_EQ(shard_path("o", {}), "o");
  for (const char* bad : {"", "1", "8/8", "-1/8", "1/0", "a/b", "1/2/3", "1/ 2"}) {
    expect_error(ExitCode::kUsage, "--shard", {std::string("'") + bad + "'"}, [bad] { parse_shard(bad); });
  }
  const ScopedVariable none("SLURM_ARRAY_TASK_ID", "");
  const ScopedVariable first("SLURM_ARRAY_TASK_MIN", "10"), step("SLURM_ARRAY_TASK_STEP", "5"),
      count("SLURM_ARRAY_TASK_COUNT", "3");
  expect_error(ExitCode::kUsage, "--shard auto", {"SLURM_ARRAY_TASK_ID is not set"}, [] { parse_shard("auto"); });
  const ScopedVariable id("SLURM_ARRAY_TASK_ID", "20");
  EXPECT_EQ(parse_shard("auto").index, 2);
  EXPECT_EQ(parse_shard("auto").count, 3);
  const ScopedVariable wrong("SLURM_ARRAY_TASK_COUNT", "three");
  expect_error(ExitCode::kUsage, "--shard auto", {"'three'"}, [] { parse_shard("auto"); });
}

std::string answer_of(const std::string& id) {
  BatchLine line = parse_batch_line(line_of(id), "in");
  GenerateResult result;
  result.text = "answer to " + id;
  return batch_result_line(job_key("o", id), line, result, 1) + "\n";
}

TEST_F(Merge, APartThatIsNoFileIsRefused) {
  folder_.write("in.jsonl", line_of("a"));
  const std::string part = out_ + ".part-0-of-1";
  ASSERT_EQ(::mkfifo(part.c_str(), 0600), 0);
  expect_error(ExitCode::kBadInput, part, {"not a regular file"}, [this] { merge_batch(in_, out_); });
}

TEST_F(Merge, JoinsInTheOrderOfTheRequests) {
  folder_.write("in.jsonl", line_of("a") + line_of("b") + "{bad\n" + line_of("c"));
  const std::string bad =
      batch_error_line(job_key("o", "bad"), "", Error({ExitCode::kBadInput, "in", "bad", ""})) + "\n";
  folder_.write("out.jsonl.part-0-of-2", answer_of("c") + answer_of("a"));
  folder_.write("out.jsonl.part-1-of-2", bad + answer_of("b") + answer_of("x").substr(0, 40));  // a crash's rest
  const MergeOutcome outcome = merge_batch(in_, out_);
  EXPECT_EQ(outcome.requests, 4);
  EXPECT_EQ(outcome.shards, 2);
  EXPECT_EQ(outcome.failed, 1);
  EXPECT_EQ(folder_.read("out.jsonl"), answer_of("a") + answer_of("b") + answer_of("c") + bad);
  expect_error(ExitCode::kUsage, out_, {"exists"}, [&] { merge_batch(in_, out_); });
}

TEST_F(Merge, WritesNothingIfAnythingIsMissing) {
  folder_.write("in.jsonl", line_of("a") + line_of("b"));
  const auto refuses = [&](const std::string& where, const std::string& says) {
    expect_error(ExitCode::kBadInput, where, {says}, [&] { merge_batch(in_, out_); });
    EXPECT_EQ(folder_.read("out.jsonl"), "");
  };
  refuses(out_, "has no part");
  folder_.write("out.jsonl.part-0-of-2", answer_of("a"));
  refuses(out_ + ".part-1-of-2", "is missing");
  folder_.write("out.jsonl.part-1-of-2", "");
  refuses(out_, "lacks 1 of 2 answers, first 'b'");
  folder_.write("out.jsonl.part-1-of-2", answer_of("a"));
  refuses(out_ + ".part-1-of-2", "answers the request 'a' again");
  folder_.write("out.jsonl.part-1-of-2", answer_of("b") + answer_of("z"));
  refuses(out_, "'z', which is not among the requests");
  folder_.write("out.jsonl.part-1-of-2", answer_of("b"));
  folder_.write("out.jsonl.part-0-of-3", "");
  refuses(out_, "has parts of 2 and of 3 shards");
}

TEST_F(Merge, WaitsForAPartThatIsBeingWritten) {
  folder_.write("in.jsonl", line_of("a"));
  folder_.write("out.jsonl.part-0-of-1", answer_of("a"));
  const ResultsFile writing(out_ + ".part-0-of-1", {}, request_lines());
  expect_error(ExitCode::kUsage, out_ + ".part-0-of-1", {"being written"}, [&] { merge_batch(in_, out_); });
}

}  // namespace
}  // namespace headrace
