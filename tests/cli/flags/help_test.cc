#include "cli/flags/help.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/flags/check_flags.h"
#include "cli/flags/parser.h"

namespace headrace {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

int64_t flags_in(const std::string& text) {
  int64_t count = 0;
  for (const std::string& line : lines_of(text)) count += line.starts_with("  -");
  return count;
}

class Help : public ::testing::Test {
 protected:
  std::unique_ptr<Parser> parser_ = std::make_unique<Parser>();
};

TEST_F(Help, ShowsTheFlagsOfAFirstDayByTopic) {
  for (const CLI::App* const command : {parser_->generate_app, parser_->summarize_app, parser_->chat_app}) {
    const std::string text = help_text(*command, command->get_name(), /*all=*/false, 100);
    EXPECT_GE(flags_in(text), 12) << text;
    EXPECT_LE(flags_in(text), 20) << text;
    for (const char* part : {"\nModel:\n", "\nMemory and device:\n", "\nText:\n", "-m,--model MODEL", "-n,--predict"})
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    for (const char* part : {"--block-score", "(Env:", "--yarn-orig-ctx"})
      EXPECT_EQ(text.find(part), std::string::npos) << part << "\n" << text;
    EXPECT_NE(text.find(" more flags: headrace " + command->get_name() + " --help-all\n"), std::string::npos) << text;
  }
}

TEST_F(Help, ShowsAllFlagsWhenAsked) {
  for (const CLI::App* const command : {parser_->generate_app, parser_->quality_app, parser_->plan_app}) {
    const std::string text = help_text(*command, "x", /*all=*/true, 100);
    for (const CLI::Option* const option : command->get_options()) {
      for (const std::string& name : typed_names(*option)) EXPECT_NE(text.find(name), std::string::npos) << name;
    }
    EXPECT_EQ(text.find(" more flags: "), std::string::npos);
    EXPECT_NE(text.find("(Env:HEADRACE_MODEL)"), std::string::npos) << text;
  }
  // One that has few shows them at once.
  const std::string profile = help_text(*parser_->profile_app, "profile", /*all=*/false, 100);
  EXPECT_NE(profile.find("--disk-seconds"), std::string::npos) << profile;
}

TEST_F(Help, IsAsWideAsTheTerminal) {
  for (const size_t columns : {size_t{44}, size_t{80}, size_t{132}}) {
    size_t longest = 0;
    for (const std::string& line : lines_of(help_text(*parser_->generate_app, "generate", /*all=*/true, columns))) {
      longest = std::max(longest, line.size());
      const size_t text = line.find_first_not_of(' ');
      const bool one_word = text == std::string::npos || line.find(' ', text) == std::string::npos;
      const bool names = line.starts_with("  -") || line.starts_with("Usage");
      EXPECT_TRUE(line.size() <= columns || one_word || names) << line;
    }
    EXPECT_GE(longest, columns - 8);
  }
}

TEST_F(Help, OfTheProgramListsItsCommands) {
  const std::string text = help_text(parser_->app, "", /*all=*/false, 80);
  EXPECT_NE(text.find("Usage: headrace COMMAND [FLAGS]\n"), std::string::npos) << text;
  for (const char* command : {"\n  generate ", "\n  summarize ", "\n  plan ", "HEADRACE_CTX_SIZE"})
    EXPECT_NE(text.find(command), std::string::npos) << command << "\n" << text;
  EXPECT_NE(help_text(*parser_->summarize_app, "summarize", false, 80).find("\nArguments:\n  FILE|DIR..."),
            std::string::npos);
}

}  // namespace
}  // namespace headrace
