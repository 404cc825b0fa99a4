// The man pages and the completions of bash, fish and zsh have every flag of every command, as the help lists them.
#include <gtest/gtest.h>
#include <stdio.h>

#include <algorithm>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using Words = std::vector<std::string>;

std::string printed(Words args) {
  const Finished finished = run_program(args);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  return finished.out;
}

// Asked for once a command: each is a run of the program.
const std::string& help(const Words& command) {
  static std::map<Words, std::string> texts;
  const auto [at, added] = texts.try_emplace(command);
  if (added) {
    Words asked = command;
    asked.emplace_back("--help-all");
    at->second = printed(std::move(asked));
  }
  return at->second;
}

// What a shell command prints, on both streams.
std::string shell(const std::string& command) {
  std::string text;
  FILE* const pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  ::pclose(pipe);
  return text;
}

Words all_matches(const std::string& text, const std::regex& pattern) {
  Words words;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    words.push_back((*match)[1]);
  }
  return words;
}

// "-m" and "--model" of "  -m,--model MODEL (Env:HEADRACE_MODEL)".
Words flags_of(const Words& command) {
  static const std::regex kLine("\n  (-[^ ]*)"), kFlag("(--?[A-Za-z][-A-Za-z0-9]*)");
  Words flags;
  for (const std::string& line : all_matches(help(command), kLine)) {
    for (std::string& flag : all_matches(line, kFlag)) flags.push_back(std::move(flag));
  }
  return flags;
}

Words below(const Words& command) {
  const std::string& text = help(command);
  const size_t at = text.find("\nSubcommands:");
  return at == text.npos ? Words() : all_matches(text.substr(at + 1), std::regex("\n  ([a-z]+) "));
}

// The program itself, its commands and theirs.
std::vector<Words> commands() {
  std::vector<Words> all = {{}};
  for (size_t i = 0; i < all.size(); ++i) {
    for (const std::string& name : below(all[i])) {
      Words command = all[i];
      command.push_back(name);
      all.push_back(std::move(command));
    }
  }
  return all;
}

std::string joined(const Words& command) {
  std::string text = "headrace";
  for (const std::string& word : command) text += " " + word;
  return text;
}

// What --write-manual writes.
class Manual : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    EXPECT_EQ(printed({"--write-manual", folder_->path()}), "");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static TemporaryFolder* folder_;
};

TemporaryFolder* Manual::folder_ = nullptr;

std::string with_dashes(const Words& command) { return std::regex_replace(joined(command), std::regex(" "), "-"); }

TEST_F(Manual, EachCommandHasAManPageWithAllOfItsFlags) {
  EXPECT_EQ(commands().size(), 17u);
  for (const Words& command : commands()) {
    const std::string name = with_dashes(command);
    const std::string page = std::regex_replace(folder_->read("man1/" + name + ".1"), std::regex(R"(\\-)"), "-");
    EXPECT_NE(page.find(".SH NAME\n" + name + " - "), page.npos) << name;
    EXPECT_EQ(page.find("--write-manual"), page.npos);  // hidden
    const Words flags = flags_of(command);
    EXPECT_FALSE(flags.empty()) << name;
    for (const std::string& flag : flags)
      EXPECT_NE(page.find("\\fB" + flag + "\\fR"), page.npos) << name << " " << flag;
    for (const std::string& each : below(command)) {
      EXPECT_NE(page.find("\\fB" + name + "-" + each + "\\fR(1)"), page.npos) << name << " " << each;
    }
  }
  const std::string generate = folder_->read("man1/headrace-generate.1");
  for (const char* text :
       {"\\fB\\-ctk\\fR", "\\fBHEADRACE_CTX_SIZE\\fR", "[256].\nEnvironment: ", "\\fBheadrace\\fR(1)"}) {
    EXPECT_NE(generate.find(text), generate.npos) << text;
  }
  EXPECT_NE(folder_->read("man1/headrace.1").find(".SH \"EXIT STATUS\""), std::string::npos);
  const std::string plan = folder_->read("man1/headrace-plan.1");
  EXPECT_NE(plan.find(".SS Arguments\n.TP\n\\fIMODEL|SHAPE|GPU|TOKENS...\\fR"), plan.npos);
}

TEST_F(Manual, GroffFindsNothingWrongWithTheManPages) {
  if (shell("command -v groff").empty()) GTEST_SKIP() << "groff is not installed";
  EXPECT_EQ(shell("for page in " + *folder_ / "man1/*.1" + "; do groff -man -Tutf8 -ww $page >/dev/null; done"), "");
}

TEST_F(Manual, AFolderThatCannotBeWrittenIsNamed) {
  folder_->write("file", "");
  const Finished finished = run_program({"--write-manual", *folder_ / "file"});
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_NE(finished.err.find("file/man1/headrace.1"), std::string::npos) << finished.err;
}

// A shell, asked what it offers behind the words of a line, the last of which may be unfinished.
struct Shell {
  const char* name;
  std::string (*ask)(const TemporaryFolder& folder, const Words& words);
};

std::string ask_bash(const TemporaryFolder& folder, const Words& words) {
  std::string line = "COMP_WORDS=(headrace";
  for (const std::string& word : words) line += " '" + word + "'";
  line += "); COMP_CWORD=" + std::to_string(words.size()) + "; _headrace; echo \"${COMPREPLY[@]}\"";
  folder.write("ask", ". " + folder / "headrace.bash" + "\n" + line + "\n");
  return shell("timeout 30 bash -u " + folder / "ask");
}

std::string ask_fish(const TemporaryFolder& folder, const Words& words) {
  folder.write("ask", "source " + folder / "headrace.fish" + "\ncomplete -C \"" + joined(words) + "\" | cut -f 1\n");
  return shell("cd " + folder / "empty" + " && HOME=" + folder / "empty" + " timeout 30 fish --no-config " +
               folder / "ask");
}

std::string ask_zsh(const TemporaryFolder& folder, const Words& words) {
  return shell("cd " + folder / "empty" +
               " && HOME=$PWD timeout 30 zsh -f " HEADRACE_SOURCE_DIR "/tests/cli/zsh_offers.zsh " + folder.path() +
               " \"" + joined(words) + "\"");
}

class Completion : public Manual, public ::testing::WithParamInterface<Shell> {
 protected:
  void SetUp() override {
    if (shell(std::string("command -v ") + GetParam().name).empty())
      GTEST_SKIP() << GetParam().name << " is not installed";
    folder_->write("empty/.keep", "");
  }

  static Words offered(const Words& words) {
    std::istringstream in(GetParam().ask(*folder_, words));
    Words offers;
    for (std::string word; in >> word;) offers.push_back(word);
    std::sort(offers.begin(), offers.end());
    return offers;
  }
};

TEST_P(Completion, HasEveryFlagOfEveryCommand) {
  if (testing::kSanitized && std::string(GetParam().name) == "zsh")
    GTEST_SKIP() << "zsh starts anew for each of 33 questions";
  for (const Words& command : commands()) {
    Words asked = command;
    asked.emplace_back("-");
    const Words offers = offered(asked);
    for (const std::string& flag : flags_of(command)) {
      EXPECT_TRUE(std::binary_search(offers.begin(), offers.end(), flag)) << joined(command) << " " << flag;
    }
    if (below(command).empty()) continue;
    Words names = below(command);
    asked.back() = "";
    std::sort(names.begin(), names.end());
    EXPECT_EQ(offered(asked), names) << joined(command);
  }
  EXPECT_EQ(offered({"generate", "-m", "x", "--ch"}), (Words{"--chat-template", "--chat-template-file"}));
  EXPECT_EQ(offered({"bench", "quality", "--budg"}), Words{"--budgets"});
}

TEST_P(Completion, HasTheValuesOfAFlag) {
  EXPECT_EQ(offered({"generate", "--kv", ""}), (Words{"auto", "device", "host"}));
  EXPECT_EQ(offered({"bench", "--kv", "d"}), Words{"device"});
  EXPECT_EQ(offered({"chat", "--verify", ""}), (Words{"approximate", "auto", "full", "lossless"}));
  EXPECT_EQ(offered({"plan", "--gpu", "rtx3060"}), (Words{"rtx3060", "rtx3060ti"}));
  EXPECT_EQ(offered({"bench", "--shape", "qwen3-1"}), (Words{"qwen3-1.7b", "qwen3-14b"}));
  EXPECT_EQ(offered({"plan", "rtx4070t"}), (Words{"rtx4070ti", "rtx4070tisuper"}));
  EXPECT_EQ(offered({"serve", "--spec-type", "draft-e"}), Words{"draft-eagle3"});
  EXPECT_EQ(offered({"summarize", "--summary-format", "j"}), Words{"jsonl"});
  EXPECT_EQ(offered({"generate", "--temp", ""}), Words());  // a number
  EXPECT_EQ(offered({"summarize", "nothing"}), Words());    // a file, of which the folder has none
}

INSTANTIATE_TEST_SUITE_P(Shells, Completion,
                         ::testing::Values(Shell{"bash", ask_bash}, Shell{"fish", ask_fish}, Shell{"zsh", ask_zsh}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(Manual, BashDividesFlagsAtEqualsSigns) {
  const auto offered = [](const Words& words) { return ask_bash(*folder_, words); };
  EXPECT_EQ(offered({"generate", "--kv", "="}), "auto device host\n");
  EXPECT_EQ(offered({"generate", "--kv", "=", "h"}), "host\n");
  EXPECT_EQ(offered({"generate", "-ct"}), "-ctk -ctv\n");
  EXPECT_EQ(offered({"bench", "-m", "quality", "--budg"}), "\n");  // a model's name
}

// Where a shell is not installed its file is checked by what it says.
TEST_F(Manual, EachCompletionHasTheDescriptionsOfTheFlags) {
  for (const char* file : {"_headrace", "headrace.fish"}) {
    const std::string text = folder_->read(file);
    for (const char* part : {"Where the KV cache is stored", "auto device host", "rtx3060", "qwen3-14b",
                             "Summarize documents, one after another"}) {
      EXPECT_NE(text.find(part), text.npos) << file << ": " << part;
    }
  }
}

}  // namespace
}  // namespace headrace
