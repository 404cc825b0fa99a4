#include <algorithm>
#include <cctype>
#include <string_view>

#include "cli/flags/check_flags.h"
#include "cli/flags/manual.h"
#include "cli/flags/named_command.h"

namespace headrace {
namespace {

// Escapes text within a line.
std::string roff(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped.starts_with('.') || escaped.starts_with('\'') ? "\\&" + escaped : escaped;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string roff_option(const CLI::Option& option) {
  std::string text = ".TP\n";
  std::string names;
  for (const std::string& name : typed_names(option)) {
    names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  }
  const std::string value = option.get_expected_max() == 0 ? "" : "\\fI" + roff(option.get_type_name()) + "\\fR";
  text += names + (names.empty() || value.empty() ? "" : " ") + value + "\n" + roff(option.get_description());
  text += text.ends_with('.') ? "\n" : ".\n";
  if (!option.get_envname().empty()) text += "Environment: \\fB" + roff(option.get_envname()) + "\\fR.\n";
  return text;
}

std::string heading(const CLI::Option& option) { return option.get_positional() ? "Arguments" : option.get_group(); }

std::string roff_options(const CLI::App& command) {
  std::string text = ".SH OPTIONS\n";
  std::vector<std::string> groups;
  const std::vector<const CLI::Option*> options = shown_options(command);
  for (const CLI::Option* const option : options) {
    if (std::find(groups.begin(), groups.end(), heading(*option)) == groups.end()) groups.push_back(heading(*option));
  }
  for (const std::string& group : groups) {
    text += ".SS " + group + "\n";
    for (const CLI::Option* const option : options) {
      if (heading(*option) == group) text += roff_option(*option);
    }
  }
  return text;
}

std::string synopsis(const NamedCommand& command) {
  std::string text = ".SH SYNOPSIS\n.B " + roff(command.name) + "\n";
  const bool has_commands = !command.app->get_subcommands({}).empty();
  if (has_commands) text += command.app->get_require_subcommand_min() > 0 ? "\\fICOMMAND\\fR\n" : "[\\fICOMMAND\\fR]\n";
  text += "[\\fIOPTIONS\\fR]\n";
  for (const CLI::Option* const option : shown_options(*command.app)) {
    if (!option->get_positional()) continue;
    const std::string name = "\\fI" + roff(option->get_type_name()) + "\\fR";
    text += option->get_required() ? name + "\n" : "[" + name + "]\n";
  }
  return text;
}

// "headrace-cache(1)" in bold, as a page names another one.
std::string reference(const std::string& name) { return "\\fB" + roff(joined_name(name, '-')) + "\\fR(1)"; }

std::string subcommands(const NamedCommand& command) {
  std::string text;
  for (const CLI::App* const below : command.app->get_subcommands({})) {
    text += ".TP\n" + reference(command.name + " " + below->get_name()) + "\n" + roff(below->get_description()) + ".\n";
  }
  return text.empty() ? text : ".SH COMMANDS\n" + text;
}

std::string description(const NamedCommand& command) {
  const std::string own = roff(command.app->get_description()) + ".\n";
  if (command.app->get_parent() != nullptr) return own;
  return roff(
             "Headrace generates text whose KV cache may exceed the memory of the GPU: the cache is kept in host "
             "memory, or on disk, and streamed to the GPU. A value in brackets is a default. Every flag can also be "
             "set by the environment variable named with it; the command line takes precedence.") +
         "\n.SH EXAMPLES\n.nf\n" +
         roff(
             "headrace plan -m MODEL -c 128K\nheadrace generate -m MODEL -f long.txt -p 'What does it say?'\n"
             "headrace summarize -m MODEL -o summaries.jsonl documents/") +
         "\n.fi\n";
}

std::string page(const NamedCommand& command) {
  const std::string name = joined_name(command.name, '-');
  const bool top = command.app->get_parent() == nullptr;
  const std::string what =
      top ? "run language models with long contexts on one consumer GPU" : command.app->get_description();
  std::string text = ".TH " + upper(roff(name)) + " 1 \"\" \"headrace " HEADRACE_VERSION "\" \"User Commands\"\n" +
                     ".SH NAME\n" + roff(name) + " \\- " + roff(what) + "\n" + synopsis(command) + ".SH DESCRIPTION\n" +
                     description(command) + subcommands(command) + roff_options(*command.app);
  if (!top) {
    const size_t parent = command.name.rfind(' ');
    return text + ".SH \"SEE ALSO\"\n" + reference(command.name.substr(0, parent)) + "\n";
  }
  return text +
         ".SH \"EXIT STATUS\"\n.TP\n0\nSuccess.\n.TP\n1\nInternal error.\n.TP\n2\nBad command line.\n"
         ".TP\n3\nBad file, model, prompt or document.\n.TP\n4\nThe run does not fit a memory budget.\n"
         ".TP\n5\nA disk or file system failed.\n.TP\n130\nInterrupted.\n";
}

}  // namespace

std::vector<ManualFile> man_pages(const CLI::App& app) {
  std::vector<ManualFile> pages;
  for (const NamedCommand& command : all_commands(app)) {
    pages.push_back({"man1/" + joined_name(command.name, '-') + ".1", page(command)});
  }
  return pages;
}

}  // namespace headrace
