// The man page and the bash completion have every flag of every command, as the help lists them.
#include <gtest/gtest.h>
#include <stdio.h>

#include <algorithm>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/process.h"
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

TEST(Manual, TheManPageHasEveryFlagOfEveryCommand) {
  const std::string page = std::regex_replace(printed({"--print-man-page"}), std::regex(R"(\\-)"), "-");
  EXPECT_EQ(page.rfind(".TH HEADRACE 1", 0), 0u);
  EXPECT_EQ(page.find("--print-man-page"), page.npos);  // hidden
  EXPECT_EQ(commands().size(), 17u);
  for (const Words& command : commands()) {
    std::string name = joined(command);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    const size_t begin = page.find(".SH \"" + name + "\"\n");
    ASSERT_NE(begin, page.npos) << name;
    const std::string section = page.substr(begin, page.find("\n.SH", begin) - begin);
    const Words flags = flags_of(command);
    EXPECT_FALSE(flags.empty()) << name;
    for (const std::string& flag : flags) {
      EXPECT_NE(section.find("\\fB" + flag + "\\fR"), section.npos) << name << " " << flag;
    }
  }
  for (const char* text :
       {"\\fB-ctk\\fR", "\\fBHEADRACE_CTX_SIZE\\fR", "[256].\nEnvironment: ", ".SH \"EXIT STATUS\""}) {
    EXPECT_NE(page.find(text), page.npos) << text;
  }
}

TEST(Manual, GroffFindsNothingWrongWithTheManPage) {
  if (shell("command -v groff").empty()) GTEST_SKIP() << "groff is not installed";
  TemporaryFolder folder;
  folder.write("headrace.1", printed({"--print-man-page"}));
  EXPECT_EQ(shell("groff -man -Tutf8 -ww " + folder / "headrace.1" + " >/dev/null"), "");
}

class Completion {
 public:
  Completion() { folder_.write("completion", printed({"--print-completion"})); }

  // What bash offers behind these words, the last of which may be unfinished.
  Words offered(const Words& words) const {
    std::string line = "COMP_WORDS=(headrace";
    for (const std::string& word : words) line += " '" + word + "'";
    line += "); COMP_CWORD=" + std::to_string(words.size()) + "; _headrace; echo \"${COMPREPLY[@]}\"";
    folder_.write("ask", ". " + folder_ / "completion" + "\n" + line + "\n");
    std::istringstream in(shell("bash -u " + folder_ / "ask"));
    Words offers;
    for (std::string word; in >> word;) offers.push_back(word);
    std::sort(offers.begin(), offers.end());
    return offers;
  }

 private:
  TemporaryFolder folder_;
};

TEST(Manual, BashCompletesEveryFlagOfEveryCommand) {
  const Completion completion;
  for (const Words& command : commands()) {
    Words asked = command;
    asked.emplace_back("-");
    const Words offers = completion.offered(asked);
    for (const std::string& flag : flags_of(command)) {
      EXPECT_TRUE(std::binary_search(offers.begin(), offers.end(), flag)) << joined(command) << " " << flag;
    }
    asked.back() = "";
    Words names = below(command);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(completion.offered(asked), names) << joined(command);
  }
  EXPECT_EQ(completion.offered({"generate", "-m", "x", "--ch"}), (Words{"--chat-template", "--chat-template-file"}));
  EXPECT_EQ(completion.offered({"generate", "-ct"}), (Words{"-ctk", "-ctv"}));
  EXPECT_EQ(completion.offered({"bench", "quality", "--budg"}), Words{"--budgets"});
  EXPECT_EQ(completion.offered({"bench", "-m", "quality", "--budg"}), Words());  // a model's name
  EXPECT_EQ(completion.offered({"summarize", "a"}), Words());                    // files, which bash lists
}

}  // namespace
}  // namespace headrace
