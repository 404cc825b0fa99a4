// The file of a batch's results: what is taken for one of ours, what is removed and when, and what is never touched.
#include "runtime/commands/results_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/commands/batch.h"
#include "runtime/commands/report.h"
#include "tests/support/file_faults.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

std::string result_line(const std::string& file) {
  GenerateResult result;
  result.text = "about \"" + file + "\"\n\xe2\x82\xac";
  return result_json(result, {file, job_key("o", file)}) + "\n";
}

std::string error_line(const std::string& file) {
  return error_json(Error({ExitCode::kBadInput, file, "is too long", "Shorten it"}), {file, job_key("o", file)}) + "\n";
}

class Results : public ::testing::Test {
 protected:
  // What the file holds after a run that adds no line.
  std::string healed(const std::string& text, const std::vector<std::string>& files = {}) {
    folder_.write("out.jsonl", text);
    ResultsFile(out_, files).begin();
    return folder_.read("out.jsonl");
  }
  static std::string message_of(const std::function<void()>& work, ExitCode code) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  TemporaryFolder folder_;
  const std::string out_ = folder_ / "out.jsonl";
  const std::string a_ = result_line("a"), b_ = result_line("b\\\" \x01"), error_ = error_line("bad\xff.txt");
};

// With and without the zeros that some file systems leave in the place of what was not written.
TEST_F(Results, AnUnfinishedLineIsRemovedAtEveryLength) {
  for (const std::string& line : {b_, error_}) {
    for (size_t length = 0; length + 1 < line.size(); length += length < 100 ? 1 : 29) {
      EXPECT_EQ(healed(a_ + line.substr(0, length)), a_) << length;
      EXPECT_EQ(healed(a_ + line.substr(0, length) + std::string(5000, '\0')), a_) << length;
      EXPECT_EQ(healed(line.substr(0, length)), "") << length;
    }
  }
}

// Each part of the file is looked at once: looking at all zeros again for each part would take minutes.
TEST_F(Results, ALongTailOfZerosIsRemoved) {
  EXPECT_EQ(healed(a_ + std::string(size_t{200} << 20, '\0')), a_);
  EXPECT_EQ(healed(a_ + b_.substr(0, 50) + std::string(size_t{1} << 20, '\0')), a_);
}

TEST_F(Results, AnotherProgramsLineWithAKeyAndATextIsForeign) {
  const std::string line = "{\"key\":\"" + std::string(64, 'a') + "\",\"text\":\"abc\"}\n";
  folder_.write("out.jsonl", line);
  message_of([&] { ResultsFile(out_, {}).begin(); }, ExitCode::kBadInput);
  EXPECT_EQ(folder_.read("out.jsonl"), line);
}

TEST_F(Results, AWholeLineWithoutItsNewlineIsKept) {
  const std::string bare = b_.substr(0, b_.size() - 1);
  EXPECT_EQ(healed(a_ + bare), a_ + b_);
  EXPECT_EQ(healed(a_ + bare + std::string(100, '\0')), a_ + b_);
  folder_.write("out.jsonl", bare);
  ResultsFile results(out_, {});
  EXPECT_EQ(results.found(), 1);
}

TEST_F(Results, AFileOfSomethingElseIsLeftAlone) {
  const std::string key(64, 'a');
  for (const std::string& text : std::vector<std::string>{
           "my notes\n", "{\"a\": 1}\n", "{\"a\": 1}", "[1]\n", "no newline", "\n\n", "{\"files\":[",
           "{\"file\":\"a\",\"text\":\"mine\"}\n", "{\"file\":\"a\",\"text\":\"mi",
           "{\"file\":\"a\",\"key\":\"short\",\"te", "{\"key\":\"k\",\"text\":\"mine\"}\n",
           "{\"key\":\"" + key + "\",\"value\":1}\n", "{\"file\":\"a\",\"key\":\"" + key + "\",\"value\":1}",
           "{\"file\":\"a\nb", std::string("\0\0mine", 6)}) {
    for (const std::string& before : {std::string(), a_ + error_}) {
      folder_.write("out.jsonl", before + text);
      const std::string message = message_of([&] { ResultsFile results(out_, {}); }, ExitCode::kBadInput);
      EXPECT_NE(message.find(before.empty() ? "line 1 is not a result" : "line 3 is not a result"), std::string::npos)
          << message << text;
      EXPECT_EQ(folder_.read("out.jsonl"), before + text);
    }
  }
}

// A run whose model cannot be opened does not get as far as begin().
TEST_F(Results, NothingIsChangedBeforeTheModelIsOpen) {
  const std::string text = error_ + a_ + error_ + b_.substr(0, 30);
  folder_.write("out.jsonl", text);
  { const ResultsFile results(out_, {"bad\xff.txt"}); }
  EXPECT_EQ(folder_.read("out.jsonl"), text);
  { const ResultsFile results(folder_ / "new.jsonl", {}); }
  EXPECT_FALSE(fs::exists(folder_ / "new.jsonl"));
  EXPECT_EQ(healed(text, {"bad\xff.txt"}), a_);
  ResultsFile(folder_ / "new.jsonl", {}).begin();
  EXPECT_TRUE(fs::exists(folder_ / "new.jsonl"));
}

TEST_F(Results, AFileThatChangedMeanwhileIsLeftAlone) {
  folder_.write("out.jsonl", a_ + "{\"file\"");
  ResultsFile results(out_, {});
  fs::resize_file(out_, a_.size());
  const std::string message = message_of([&] { results.begin(); }, ExitCode::kStorage);
  EXPECT_NE(message.find("was changed by another program"), std::string::npos) << message;
  EXPECT_EQ(folder_.read("out.jsonl"), a_);
}

// A line has the file's name with U+FFFD in it.
TEST_F(Results, ErrorLinesOfTheseFilesAreRemovedWhateverTheirNames) {
  const std::string other = error_line("other");
  EXPECT_EQ(healed(error_ + a_ + other + error_ + b_, {"bad\xff.txt", "a"}), a_ + other + b_);
  EXPECT_EQ(healed(a_ + error_ + error_, {"bad\xff.txt"}), a_);
  EXPECT_EQ(healed(error_ + a_, {"elsewhere"}), error_ + a_);
}

// The file beside OUT is nobody's: not the user's OUT.tmp, nor what a link of that name leads to.
TEST_F(Results, OtherFilesOfTheFolderStayAsTheyAre) {
  folder_.write("victim", "precious");
  fs::create_symlink("victim", out_ + ".tmp");
  fs::permissions(folder_.write("out.jsonl", error_ + a_), fs::perms(0640));
  ResultsFile(out_, {"bad\xff.txt"}).begin();
  EXPECT_EQ(folder_.read("out.jsonl"), a_);
  EXPECT_EQ(fs::status(out_).permissions(), fs::perms(0640));
  EXPECT_EQ(folder_.read("victim"), "precious");
  EXPECT_TRUE(fs::is_symlink(out_ + ".tmp"));
  int64_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_.path())) ++files;
  EXPECT_EQ(files, 3);
}

// In place: the unfinished line and the error lines at the end go, and the file is written on.
TEST_F(Results, AFolderThatCannotBeWrittenIsNoHindrance) {
  folder_.write("out.jsonl", error_ + a_ + error_ + b_.substr(0, 40));
  {
    const testing::ScriptedFaults faults(testing::failing(FileOp::kOpen, 0, EACCES));
    ResultsFile results(out_, {"bad\xff.txt"});
    results.begin();
    EXPECT_EQ(folder_.read("out.jsonl"), error_ + a_);
    results.append("more");
  }
  EXPECT_EQ(folder_.read("out.jsonl"), error_ + a_ + "more\n");
}

TEST_F(Results, ALineIsOnlyWrittenWhereThePathLeads) {
  const std::vector<std::function<void()>> losses = {
      [&] { fs::remove(out_); },
      [&] { fs::rename(out_, folder_ / "moved.jsonl"); },
      [&] {
        fs::rename(out_, folder_ / "moved.jsonl");
        folder_.write("out.jsonl", "another's");
      },
  };
  for (const auto& lose : losses) {
    fs::remove(out_);
    ResultsFile results(out_, {});
    results.begin();
    results.append("first");
    lose();
    const bool replaced = fs::exists(out_);
    const std::string message = message_of([&] { results.append("second"); }, ExitCode::kStorage);
    EXPECT_NE(message.find(out_ + ": was replaced or removed"), std::string::npos) << message;
    EXPECT_EQ(folder_.read("out.jsonl"), replaced ? "another's" : "");
  }
  EXPECT_EQ(folder_.read("moved.jsonl"), "first\n");
}

// Another program that writes to the open file, as `> out.jsonl` does.
TEST_F(Results, ALineIsNotAddedToAFileThatAnotherProgramChanged) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{3}, uint64_t{1000}}) {
    fs::remove(out_);
    ResultsFile results(out_, {});
    results.begin();
    results.append("first");
    fs::resize_file(out_, bytes);
    const std::string before = folder_.read("out.jsonl");
    const std::string message = message_of([&] { results.append("second"); }, ExitCode::kStorage);
    EXPECT_NE(message.find(str("was changed by another program: it has ", bytes, " bytes instead of 6")),
              std::string::npos)
        << message;
    EXPECT_EQ(folder_.read("out.jsonl"), before);
  }
}

TEST_F(Results, OneRunAtATime) {
  ResultsFile first(out_, {});
  const std::string message = message_of([&] { ResultsFile second(out_, {}); }, ExitCode::kUsage);
  EXPECT_NE(message.find("is being written by another run"), std::string::npos) << message;
}

TEST_F(Results, TheLockSurvivesACleanedFile) {
  folder_.write("out.jsonl", error_ + a_);
  ResultsFile first(out_, {"bad\xff.txt"});
  first.begin();
  EXPECT_EQ(folder_.read("out.jsonl"), a_);
  EXPECT_THROW(ResultsFile(out_, {}), Error);
}

TEST_F(Results, ALinkStaysALink) {
  folder_.write("real.jsonl", error_ + a_);
  fs::create_symlink("real.jsonl", out_);
  ResultsFile(out_, {"bad\xff.txt"}).begin();
  EXPECT_TRUE(fs::is_symlink(out_));
  EXPECT_EQ(folder_.read("real.jsonl"), a_);
}

TEST_F(Results, AFolderThatIsNotThereIsAStorageError) {
  const std::string message =
      message_of([&] { ResultsFile results(folder_ / "gone/out.jsonl", {}); }, ExitCode::kStorage);
  EXPECT_NE(message.find("gone/out.jsonl: cannot be opened"), std::string::npos) << message;
}

}  // namespace
}  // namespace headrace
