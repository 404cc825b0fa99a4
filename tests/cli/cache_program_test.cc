// --prefix-cache and headrace cache as a user meets them: the second question, what is damaged, two programs at once,
// and programs that are killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

class CacheProgram : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    write_tiny_model(*folder_ / "model");
    std::string text;
    for (int i = 0; text.size() < 3000; ++i) text += "Sentence " + std::to_string(i * i) + " of a document. ";
    document_ = folder_->write("document.txt", text);
  }
  static void TearDownTestSuite() { delete folder_; }

  std::string cache() const { return cache_ / "cache"; }
  // Of the document; `cached`: with --prefix-cache.
  std::vector<std::string> question(const std::string& text, bool cached) const {
    std::vector<std::string> args = {"generate", "-m", *folder_ / "model", "-n", "12", "--ignore-eos", "-t",
                                     "2",        "-f", document_,          "-p", text, "--json",       "-q"};
    if (cached) args.insert(args.end(), {"--prefix-cache", cache()});
    return args;
  }
  json ask(const std::string& text, bool cached) const {
    const Finished run = run_program(question(text, cached));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
    return json::parse(run.out);
  }
  json look(const std::string& action, int exit_code = 0) const {
    const Finished run = run_program({"cache", action, cache(), "--json"});
    EXPECT_EQ(run.exit_code, exit_code) << run.err;
    return json::parse(run.out);
  }

  static TemporaryFolder* folder_;
  static std::string document_;
  const TemporaryFolder cache_;
};
TemporaryFolder* CacheProgram::folder_ = nullptr;
std::string CacheProgram::document_;

TEST_F(CacheProgram, TheSecondQuestionReadsTheDocument) {
  const json first = ask("What is it?", true), second = ask("Who wrote it?", true);
  EXPECT_EQ(first["token_ids"], ask("What is it?", false)["token_ids"]);
  EXPECT_EQ(second["token_ids"], ask("Who wrote it?", false)["token_ids"]);
  EXPECT_FALSE(ask("What is it?", false).contains("prefix"));
  EXPECT_EQ(first["prefix"]["cached_tokens"], 0);
  EXPECT_EQ(first["prefix"]["saved_tokens"], first["prompt_tokens"]);
  EXPECT_GT(second["prefix"]["cached_tokens"], 3000);
  EXPECT_GT(second["prefix"]["read_bytes"], 0);
  EXPECT_EQ(second["prefix"]["notes"], json::array());
  for (const json& answer : {first, second}) {  // what was not computed has no speed
    const int64_t computed = answer["prompt_tokens"].get<int64_t>() - answer["prefix"]["cached_tokens"].get<int64_t>();
    const double seconds = answer["timings"]["ttft_ms"].get<double>() / 1e3;
    EXPECT_NEAR(answer["timings"]["prefill_tokens_per_s"].get<double>() * seconds / static_cast<double>(computed), 1,
                0.01);
  }
  const json list = look("list");
  ASSERT_EQ(list["prompts"].size(), 1u);
  EXPECT_EQ(list["prompts"][0]["tokens"], first["prompt_tokens"]);
  EXPECT_EQ(list["prompts"][0]["model"], "model");
  EXPECT_EQ(list["prompts"][0]["bytes"], list["bytes"]);
  EXPECT_EQ(list["format"], 2);
}

TEST_F(CacheProgram, TheReportSaysWhatCameFromThere) {
  std::vector<std::string> args = question("What is it?", true);
  args.erase(args.end() - 4, args.end() - 2);  // --json and -q
  ASSERT_EQ(run_program(args).exit_code, 0);
  const Finished again = run_program(args);
  EXPECT_NE(again.err.find("\n  prefix    3,"), std::string::npos) << again.err;
  EXPECT_NE(again.err.find(" tokens from the cache, "), std::string::npos) << again.err;
  const Finished list = run_program({"cache", "list", cache()});
  EXPECT_EQ(list.out.find("name "), 0u) << list.out;
  EXPECT_NE(list.out.find(": 1 prompts, "), std::string::npos) << list.out;
  EXPECT_EQ(list.out.find("Sentence"), std::string::npos);
}

// list, verify and prune know the states beside the rows.
TEST_F(CacheProgram, OfAModelWithRecurrentStates) {
  write_tiny_hybrid(*folder_ / "hybrid");
  const auto ask_hybrid = [&](const std::string& text, bool cached) {
    std::vector<std::string> args = question(text, cached);
    args[2] = *folder_ / "hybrid";
    const Finished run = run_program(args);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return json::parse(run.out);
  };
  const json first = ask_hybrid("What is it?", true), second = ask_hybrid("Who wrote it?", true);
  EXPECT_EQ(first["token_ids"], ask_hybrid("What is it?", false)["token_ids"]);
  EXPECT_EQ(second["token_ids"], ask_hybrid("Who wrote it?", false)["token_ids"]);
  EXPECT_EQ(first["prefix"]["cached_tokens"], 0);
  EXPECT_GE(second["prefix"]["cached_tokens"], 2048);
  const json list = look("list");
  uint64_t bytes = 0;
  for (const json& prompt : list["prompts"]) {
    EXPECT_GE(prompt["states"], 2);
    EXPECT_EQ(prompt["draft"], true);  // its own MTP block
    bytes = std::max(bytes, prompt["bytes"].get<uint64_t>());
  }
  EXPECT_GT(bytes, 0u);
  const Finished text = run_program({"cache", "list", cache()});
  EXPECT_NE(text.out.find(", states at "), std::string::npos) << text.out;
  std::set<std::string> data;  // each block counts, of whatever kind
  for (const auto& file : std::filesystem::directory_iterator(cache())) {
    if (file.path().extension() == ".kv") data.insert(file.path().filename());
  }
  EXPECT_EQ(look("verify")["blocks"], data.size());
  for (const std::string& name : data) {
    std::string content = cache_.read("cache/" + name);
    content[content.size() - 1] = static_cast<char>(content[content.size() - 1] ^ 2);
    cache_.write("cache/" + name, content);
  }
  EXPECT_EQ(look("verify", 5)["damaged"].size(), data.size());
  EXPECT_EQ(ask_hybrid("Who wrote it?", true)["token_ids"], second["token_ids"]);
  const json pruned = look("prune");
  EXPECT_EQ(pruned["bytes"], 0);
  for (const auto& file : std::filesystem::directory_iterator(cache())) {
    EXPECT_NE(file.path().extension(), ".kv");
    EXPECT_NE(file.path().extension(), ".seg");
  }
}

TEST_F(CacheProgram, ABatchSharesADocumentsBeginning) {
  const std::string again = folder_->write("again.txt", folder_->read("document.txt") + "A last sentence.");
  const Finished run = run_program({"summarize", "-m", *folder_ / "model", "-n", "4", "--ignore-eos", "-q", "--json",
                                    "--prefix-cache", cache() + ":64MiB", document_, again});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::istringstream lines(run.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(json::parse(line)["prefix"]["cached_tokens"], 0);
  std::getline(lines, line);
  EXPECT_GT(json::parse(line)["prefix"]["cached_tokens"], 2900);
}

TEST_F(CacheProgram, WhatIsDamagedIsNamedAndComputedAgain) {
  const json fresh = ask("What is it?", true);
  const json whole = look("verify");
  EXPECT_EQ(whole["damaged"], json::array());
  EXPECT_GT(whole["blocks"], 0);
  std::string name;
  for (const auto& file : std::filesystem::directory_iterator(cache())) {
    if (file.path().extension() == ".kv") name = file.path().filename();
  }
  std::string data = cache_.read("cache/" + name);
  data[data.size() / 2] = static_cast<char>(data[data.size() / 2] ^ 2);
  cache_.write("cache/" + name, data);
  const json bad = look("verify", 5);
  ASSERT_EQ(bad["damaged"].size(), 1u);
  EXPECT_EQ(bad["damaged"][0]["file"], cache() + "/" + name);
  const Finished text = run_program({"cache", "verify", cache()});
  EXPECT_EQ(text.exit_code, 5);
  EXPECT_NE(text.out.find(name), std::string::npos) << text.out;
  const json again = ask("What is it?", true);
  EXPECT_EQ(again["token_ids"], fresh["token_ids"]);
  ASSERT_EQ(again["prefix"]["notes"].size(), 1u);
  EXPECT_NE(std::string(again["prefix"]["notes"][0]).find(name), std::string::npos);
  EXPECT_EQ(look("verify")["damaged"], json::array());
}

TEST_F(CacheProgram, ADamagedManifestIsSaid) {
  const json fresh = ask("What is it?", true);
  std::string name;
  for (const auto& file : std::filesystem::directory_iterator(cache())) {
    if (file.path().extension() == ".seg") name = file.path().filename();
  }
  std::string text = cache_.read("cache/" + name);
  text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 2);
  cache_.write("cache/" + name, text);
  const json again = ask("What is it?", true);
  EXPECT_EQ(again["token_ids"], fresh["token_ids"]);
  ASSERT_EQ(again["prefix"]["notes"].size(), 1u);
  EXPECT_NE(std::string(again["prefix"]["notes"][0]).find(name), std::string::npos) << again["prefix"];
}

// What is not a cache is not made one, and a name that the system does not take is the same error as one that is not
// there.
TEST_F(CacheProgram, OtherFoldersAreLeftAlone) {
  cache_.write("other/notes.txt", "somebody's own");
  const std::string other = cache_ / "other";
  const Finished pruned = run_program({"cache", "prune", other});
  EXPECT_EQ(pruned.exit_code, 5);
  EXPECT_NE(pruned.err.find(other), std::string::npos) << pruned.err;
  EXPECT_NE(pruned.err.find("holds no saved prefixes: nothing in it is removed"), std::string::npos) << pruned.err;
  for (const char* action : {"list", "verify"}) {
    const Finished looked = run_program({"cache", action, other});
    EXPECT_EQ(looked.exit_code, 5) << action << looked.err;
    EXPECT_EQ(looked.out, "");
    EXPECT_NE(looked.err.find(other + ": holds no saved prefixes"), std::string::npos) << looked.err;
    std::filesystem::create_directory(cache_ / "empty");
    EXPECT_EQ(run_program({"cache", action, cache_ / "empty"}).exit_code, 0) << action;
  }
  EXPECT_FALSE(std::filesystem::exists(other + "/headrace-prefix-cache.lock"));
  for (const char* action : {"list", "verify", "prune"}) {
    const Finished said = run_program({"cache", action, std::string(300, 'x')});
    EXPECT_EQ(said.exit_code, 5) << said.err;
    EXPECT_NE(said.err.find("xxx"), std::string::npos) << said.err;
  }
}

// Opened, it would wait for who writes to it.
TEST_F(CacheProgram, AFifoInThePlaceOfAManifestIsDamage) {
  const json fresh = ask("What is it?", true);
  const std::string fifo = cache() + "/" + std::string(64, 'a') + ".seg";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const json list = look("list");
  EXPECT_EQ(list["prompts"].size(), 1u);
  ASSERT_EQ(list["damaged"].size(), 1u);
  EXPECT_EQ(list["damaged"][0]["file"], fifo);
  EXPECT_EQ(list["damaged"][0]["error"], "is not a regular file");
  EXPECT_EQ(look("verify", 5)["damaged"], list["damaged"]);
  EXPECT_EQ(ask("What is it?", true)["token_ids"], fresh["token_ids"]);
}

TEST_F(CacheProgram, PruneKeepsWhatIsAsked) {
  ask("What is it?", true);
  const uint64_t before = look("list")["bytes"];
  const Finished some = run_program({"cache", "prune", cache(), "--to", std::to_string(before / 2), "--json"});
  ASSERT_EQ(some.exit_code, 0) << some.err;
  EXPECT_LE(json::parse(some.out)["bytes"], before / 2);
  EXPECT_GT(json::parse(some.out)["bytes"], 0);
  EXPECT_EQ(look("prune")["bytes"], 0);
  EXPECT_EQ(look("list")["prompts"], json::array());
  EXPECT_EQ(run_program({"cache", "list", cache() + "/nowhere"}).exit_code, 5);
  EXPECT_EQ(run_program({"cache"}).exit_code, 2);
  EXPECT_EQ(run_program({"cache", "list"}).exit_code, 2);
  EXPECT_EQ(run_program({"generate", "-m", "x", "--prefix-cache", ":1GiB"}).exit_code, 2);
}

// A killed save's files, and what lies behind a piece that is gone, are room that somebody misses.
TEST_F(CacheProgram, LeftoversAreCounted) {
  ask("What is it?", true);
  EXPECT_EQ(look("list")["leftover_bytes"], 0);
  const uint64_t kept = look("list")["bytes"];
  const std::string name(64, 'a');
  std::ofstream(cache() + "/" + name + ".kv.tmp") << std::string(100'000, 'x');
  EXPECT_EQ(look("list")["leftover_bytes"], 100'000);
  EXPECT_EQ(look("verify")["leftover_bytes"], 100'000);
  EXPECT_NE(run_program({"cache", "list", cache()}).out.find("\n97.66 KiB more are being written, or are leftovers"),
            std::string::npos);
  const json pruned = json::parse(run_program({"cache", "prune", cache(), "--to", "1GiB", "--json"}).out);
  EXPECT_EQ(pruned["removed_bytes"], 100'000);
  EXPECT_EQ(pruned["leftover_bytes"], 100'000);
  EXPECT_EQ(pruned["bytes"], kept);
  EXPECT_EQ(look("list")["leftover_bytes"], 0);
}

// Wherever the kill comes, the next run says what a fresh one does, and leaves the cache whole.
TEST_F(CacheProgram, KilledRunsLeaveNothingHalf) {
  const json fresh = ask("What is it?", false);
  std::vector<std::string> args = question("What is it?", true);
  for (int ms = 10; ms <= 200; ms += testing::kSanitized ? 95 : 38) {
    {
      Program program(args, Program::Streams::kNone);
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      program.send(SIGKILL);
      program.wait();
    }
    EXPECT_EQ(ask("What is it?", true)["token_ids"], fresh["token_ids"]);
    EXPECT_EQ(look("verify")["damaged"], json::array());
    for (const auto& file : std::filesystem::directory_iterator(cache())) EXPECT_NE(file.path().extension(), ".tmp");
    run_program({"cache", "prune", cache()});
  }
}

TEST_F(CacheProgram, TwoAtOnceSayTheSame) {
  const json fresh = ask("What is it?", false);
  Finished other;
  std::thread beside([&] { other = run_program(question("What is it?", true)); });
  const json one = ask("What is it?", true);
  beside.join();
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(json::parse(other.out)["token_ids"], fresh["token_ids"]);
  EXPECT_EQ(one["token_ids"], fresh["token_ids"]);
  EXPECT_EQ(look("verify")["damaged"], json::array());
  EXPECT_EQ(look("list")["prompts"].size(), 1u);
}

}  // namespace
}  // namespace headrace
