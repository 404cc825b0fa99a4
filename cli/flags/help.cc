#include "cli/flags/help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "cache/base.h"
#include "cli/flags/check_flags.h"

namespace headrace {
namespace {

constexpr size_t kUsualColumns = 100, kMinColumns = 40, kMaxColumns = 160, kTextColumn = 30;
constexpr size_t kFewFlags = 16;  // a command that has no more shows all

// By their first long names.
constexpr std::array kFirstDay = {
    "help",        "help-all",     "version",  "model",       "prompt",     "file",  "system",        "input",
    "output",      "long",         "truncate", "instruction", "ctx-size",   "vram",  "weights",       "spec-type",
    "model-draft", "verify",       "predict",  "temp",        "json",       "quiet", "documents",     "port",
    "host",        "api-key-file", "gpu",      "shape",       "perplexity", "shard", "prompt-tokens", "decode-tokens"};

bool is_of_first_day(const CLI::Option& option) {
  const std::vector<std::string>& names = option.get_lnames();
  return !names.empty() && std::find(kFirstDay.begin(), kFirstDay.end(), names.front()) != kFirstDay.end();
}

// `text` from the column on, in lines of at most `columns`; the first line begins where the cursor is.
std::string wrapped(std::string_view text, size_t column, size_t cursor, size_t columns) {
  std::string out;
  bool first = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!first && cursor + 1 + word.size() > columns) {
      out += "\n" + std::string(column, ' ');
      cursor = column;
    } else if (!first) {
      out += ' ';
      ++cursor;
    }
    out += word;
    cursor += word.size();
    first = false;
  }
  return out + "\n";
}

// "  -c,--ctx-size TOKENS      Maximum number of tokens, ..."
std::string row(const std::string& name, const std::string& text, size_t columns) {
  std::string out = "  " + name;
  const size_t column = columns >= 60 ? kTextColumn : 8;
  if (out.size() + 2 > column) {
    out += "\n" + std::string(column, ' ');
  } else {
    out.resize(column, ' ');
  }
  return out + wrapped(text, column, column, columns);
}

std::string flag_row(const CLI::Option& option, bool all, size_t columns) {
  std::string names;
  for (const std::string& name : typed_names(option)) {
    names += (names.empty() ? "" : ",") + name;
  }
  if (option.get_expected_max() > 0) names += " " + option.get_type_name();
  std::string text = option.get_description();
  if (all && !option.get_envname().empty()) text += " (Env:" + option.get_envname() + ")";
  return row(names, text, columns);
}

}  // namespace

size_t terminal_columns() {
  winsize size = {};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::clamp<size_t>(size.ws_col, kMinColumns, kMaxColumns) : kUsualColumns;
}

std::string help_text(const CLI::App& command, const std::string& path, bool all, size_t columns) {
  const std::vector<const CLI::App*> below = command.get_subcommands({});
  std::vector<const CLI::Option*> flags, words;
  for (const CLI::Option* const option : command.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? words : flags).push_back(option);
  }
  const std::string program = "headrace" + (path.empty() ? "" : " " + path);
  std::string usage = "Usage: " + program +
                      (below.empty()  ? " [FLAGS]"
                       : path.empty() ? " COMMAND [FLAGS]"
                                      : " [FLAGS] [COMMAND]");
  for (const CLI::Option* const word : words) {
    usage += word->get_required() ? " " + word->get_type_name() : " [" + word->get_type_name() + "]";
  }
  std::string text = wrapped(command.get_description(), 0, 0, columns) + usage + "\n";
  if (!words.empty()) text += "\nArguments:\n";
  for (const CLI::Option* const word : words) text += row(word->get_type_name(), word->get_description(), columns);
  const size_t had = flags.size();
  if (!all && flags.size() > kFewFlags) std::erase_if(flags, [](const auto* flag) { return !is_of_first_day(*flag); });
  std::vector<std::string> topics;
  for (const CLI::Option* const flag : flags) {
    if (std::find(topics.begin(), topics.end(), flag->get_group()) == topics.end()) topics.push_back(flag->get_group());
  }
  for (const std::string& topic : topics) {
    text += "\n" + topic + ":\n";
    for (const CLI::Option* const flag : flags) {
      if (flag->get_group() == topic) text += flag_row(*flag, all, columns);
    }
  }
  if (!below.empty()) text += "\nSubcommands:\n";
  for (const CLI::App* const each : below) text += row(each->get_name(), each->get_description(), columns);
  if (flags.size() < had)
    text += "\n" + wrapped(str(had - flags.size(), " more flags: ", program, " --help-all"), 0, 0, columns);
  const std::string footer = command.get_footer();
  return footer.empty() ? text : text + "\n" + wrapped(footer, 0, 0, columns);
}

}  // namespace headrace
