#include "runtime/commands/batch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/json_lines.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

class Jobs : public ::testing::Test {
 protected:
  // A batch over `files` whose answers are made up; `texts_` are the files' contents.
  BatchOutcome run(const std::vector<std::string>& files, const std::string& options = "o") {
    ResultsFile results(out_, files);
    BatchOptions batch;
    batch.files = files;
    batch.options = options;
    batch.results = &results;
    batch.read = [&](const BatchJob& job) {
      if (!texts_.contains(job.file)) throw_error(ExitCode::kBadInput, job.file, "no such file");
      return texts_.at(job.file);
    };
    batch.answer = [&](const BatchJob& job, const std::string& text) {
      const std::string& file = job.file;
      answered_.push_back(file);
      if (text == "too long") throw_error(ExitCode::kBadInput, file, "is too long");
      if (text == "too much") throw_error(ExitCode::kDoesNotFit, file, "does not fit");
      if (text == "no memory") throw std::bad_alloc();
      if (text == "waited for") throw_error(ExitCode::kInterrupted, file, "interrupted");
      if (text == "disk") throw_error(ExitCode::kStorage, file, "the disk is gone");
      GenerateResult result;
      result.text = "about " + text;
      result.finish_reason = text == "ctrl-c" ? FinishReason::kInterrupted : FinishReason::kStop;
      return result;
    };
    batch.events.on_skipped = [&](const BatchJob& job) { skipped_.push_back(job.file); };
    return run_batch(batch);
  }

  std::vector<json> lines() const { return testing_support::json_lines(folder_.read("out.jsonl")); }

  TemporaryFolder folder_;
  std::string out_ = folder_ / "out.jsonl";
  std::map<std::string, std::string> texts_ = {{"a", "A"}, {"b", "B"}, {"c", "C"}};
  std::vector<std::string> answered_, skipped_;
};

TEST_F(Jobs, WritesALineADocumentInOrder) {
  const BatchOutcome outcome = run({"a", "b", "c"});
  EXPECT_EQ(outcome.answered, 3);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kDone);
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_EQ(lines()[1]["file"], "b");
  EXPECT_EQ(lines()[1]["text"], "about B");
}

TEST_F(Jobs, ARerunSkipsWhatIsThere) {
  run({"a", "b"});
  const BatchOutcome outcome = run({"a", "b", "c"});
  EXPECT_EQ(outcome.skipped, 2);
  EXPECT_EQ(outcome.answered, 1);
  EXPECT_EQ(answered_, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(skipped_, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(lines().size(), 3u);
}

TEST_F(Jobs, OtherContentOrOptionsAreOtherWork) {
  run({"a", "b"});
  texts_["a"] = "A, changed";
  EXPECT_EQ(run({"a", "b"}).answered, 1);
  EXPECT_EQ(run({"a", "b"}, "other options").answered, 2);
  EXPECT_EQ(lines().size(), 5u);
}

TEST_F(Jobs, MovedDocumentsAreFoundAndEqualOnesGetALineEach) {
  run({"a"});
  texts_["moved"] = texts_["twin"] = "A";
  const BatchOutcome outcome = run({"moved", "twin"});
  EXPECT_EQ(outcome.skipped, 1);
  EXPECT_EQ(outcome.answered, 1);
  EXPECT_EQ(lines().size(), 2u);
  EXPECT_EQ(run({"moved", "twin"}).skipped, 2);
}

TEST_F(Jobs, AFailingDocumentIsALineAndTheRestGoOn) {
  texts_["b"] = "too long";
  const BatchOutcome outcome = run({"a", "b", "gone", "c"});
  EXPECT_EQ(outcome.answered, 2);
  EXPECT_EQ(outcome.failed, 2);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kBadInput);
  ASSERT_EQ(lines().size(), 4u);
  EXPECT_EQ(lines()[1]["error"], "b: is too long");
  EXPECT_EQ(lines()[2]["error"], "gone: no such file");
}

// The code of all that fail, where they fail alike; one document or many.
TEST_F(Jobs, TheExitCodeIsThatOfTheFailures) {
  texts_ = {{"a", "A"}, {"b", "too much"}, {"c", "too much"}, {"d", "too long"}};
  EXPECT_EQ(run({"b"}).exit_code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(run({"a", "b"}).exit_code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(run({"b", "a", "c"}).exit_code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(run({"b", "a", "d"}).exit_code(), ExitCode::kBadInput);
  EXPECT_EQ(run({"d", "b", "c"}).exit_code(), ExitCode::kBadInput);
}

// A document that memory runs out for is one that does not fit.
TEST_F(Jobs, OutOfMemoryIsTheDocumentsError) {
  texts_ = {{"a", "no memory"}, {"b", "B"}};
  const BatchOutcome outcome = run({"a", "b"});
  EXPECT_EQ(outcome.failed, 1);
  EXPECT_EQ(outcome.answered, 1);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kDoesNotFit);
  EXPECT_EQ(answered_, (std::vector<std::string>{"a", "b"}));
}

TEST_F(Jobs, FailedDocumentsAreTriedAgainAndOthersErrorsKept) {
  texts_["b"] = "too long";
  texts_["elsewhere"] = "too long";
  run({"elsewhere"});
  run({"a", "b"});
  texts_["b"] = "B";
  EXPECT_EQ(run({"a", "b"}).answered, 1);
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_EQ(lines()[0]["file"], "elsewhere");
  EXPECT_EQ(lines()[1]["text"], "about A");
  EXPECT_EQ(lines()[2]["text"], "about B");
}

TEST_F(Jobs, AnInterruptedDocumentHasNoLine) {
  texts_["b"] = "ctrl-c";
  const BatchOutcome outcome = run({"a", "b", "c"});
  EXPECT_TRUE(outcome.interrupted);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kInterrupted);
  EXPECT_EQ(lines().size(), 1u);
  texts_["b"] = "B";
  EXPECT_EQ(run({"a", "b", "c"}).answered, 2);
}

TEST_F(Jobs, ADocumentWhoseReadingIsInterruptedHasNoLine) {
  texts_["b"] = "waited for";
  const BatchOutcome outcome = run({"a", "b", "c"});
  EXPECT_EQ(outcome.exit_code(), ExitCode::kInterrupted);
  EXPECT_EQ(answered_, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(Jobs, OtherErrorsEndTheBatchAndKeepWhatIsDone) {
  texts_["b"] = "disk";
  EXPECT_THROW(run({"a", "b", "c"}), Error);
  EXPECT_EQ(lines().size(), 1u);
  EXPECT_EQ(answered_, (std::vector<std::string>{"a", "b"}));
}

// A full disk, played by the limit on a file's size: the torn line is an error now and dropped by the rerun.
TEST_F(Jobs, AFullDiskIsAStorageErrorAndLosesNothing) {
  run({"a"});
  const auto size = std::filesystem::file_size(out_);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {size + 20, size + 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 0;
    try {
      run({"a", "b"});
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kStorage));
  EXPECT_EQ(std::filesystem::file_size(out_), size + 20);
  EXPECT_EQ(run({"a", "b"}).answered, 1);
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(Jobs, WithoutAFileNothingIsSkipped) {
  BatchOptions batch;
  batch.files = {"a", "a"};
  int answers = 0;
  batch.read = [](const BatchJob&) { return "A"; };
  batch.answer = [&](const BatchJob&, const std::string&) {
    ++answers;
    return GenerateResult();
  };
  EXPECT_EQ(run_batch(batch).answered, 2);
  EXPECT_EQ(answers, 2);
}

class ModelStamp : public ::testing::Test {
 protected:
  std::string stamp(const std::vector<std::string>& weights) const {
    std::vector<FileStamp> files;
    for (const std::string& name : weights) files.push_back(*stamp_of(folder_ / name));
    return files_stamp(files);
  }
  void touch(const std::string& name) const {
    const std::string path = folder_ / name;
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  }
  TemporaryFolder folder_;
};

TEST_F(ModelStamp, OfAFileIsThatOfTheFile) {
  folder_.write("model/a.gguf", "weights");
  const std::string before = stamp({"model/a.gguf"});
  folder_.write("model/config.json", "{}");
  EXPECT_EQ(stamp({"model/a.gguf"}), before);
  touch("model/a.gguf");
  EXPECT_NE(stamp({"model/a.gguf"}), before);
  EXPECT_EQ(files_stamp({}), "");
}

TEST_F(ModelStamp, OfADirectoryCountsWhatIsRead) {
  const std::vector<std::string> weights = {"model/1.safetensors", "model/2.safetensors"};
  const std::vector<std::string> read = {"model/1.safetensors", "model/2.safetensors", "model/config.json",
                                         "model/tokenizer.json", "model/tokenizer_config.json"};
  for (const std::string& name : read) folder_.write(name, name);
  std::string before = stamp(weights);
  for (const char* other : {"model/README.md", "model/pytorch_model.bin", "model/.cache/x", "model/out.jsonl"}) {
    folder_.write(other, "x");
    EXPECT_EQ(stamp(weights), before) << other;
  }
  for (const std::string& name : read) {
    touch(name);
    EXPECT_NE(stamp(weights), before) << name;
    before = stamp(weights);
  }
  folder_.write("model/chat_template.jinja", "x");  // in the place of what tokenizer_config.json has
  EXPECT_NE(stamp(weights), before);
  before = stamp(weights);
  touch("model/tokenizer_config.json");
  EXPECT_EQ(stamp(weights), before);
}

TEST(JobKey, KeepsOptionsAndContentApart) {
  EXPECT_NE(job_key("ab", "c"), job_key("a", "bc"));
  EXPECT_NE(job_key("", "a"), job_key("a", ""));
  EXPECT_EQ(job_key("a", "b"), job_key("a", "b"));
}

}  // namespace
}  // namespace headrace
