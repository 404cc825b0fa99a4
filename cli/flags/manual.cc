#include <algorithm>
#include <string_view>
#include <vector>

#include "cli/flags/check_flags.h"
#include "cli/flags/parser.h"

namespace headrace {
namespace {

// A command with its full name, "headrace cache list". In the order of the help, parents first.
struct Named {
  std::string name;
  const CLI::App* app;
};

std::vector<Named> all_commands(const CLI::App& app) {
  std::vector<Named> commands = {{app.get_name(), &app}};
  for (size_t i = 0; i < commands.size(); ++i) {
    const std::string parent = commands[i].name;
    size_t at = i;
    for (const CLI::App* const below : commands[i].app->get_subcommands({})) {
      commands.insert(commands.begin() + static_cast<std::ptrdiff_t>(++at), {parent + " " + below->get_name(), below});
    }
  }
  return commands;
}

std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

// ---- roff ----

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

std::string roff_command(const Named& command) {
  std::string heading = command.name;
  std::transform(heading.begin(), heading.end(), heading.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string text = ".SH \"" + heading + "\"\n" + roff(command.app->get_description()) + ".\n";
  std::vector<std::string> groups;
  const std::vector<const CLI::Option*> options = shown_options(*command.app);
  for (const CLI::Option* const option : options) {
    if (std::find(groups.begin(), groups.end(), option->get_group()) == groups.end()) {
      groups.push_back(option->get_group());
    }
  }
  for (const std::string& group : groups) {
    text += ".SS " + group + "\n";
    for (const CLI::Option* const option : options) {
      if (option->get_group() == group) text += roff_option(*option);
    }
  }
  return text;
}

}  // namespace

std::string man_page(const CLI::App& app) {
  std::string text = ".TH HEADRACE 1 \"\" \"headrace " HEADRACE_VERSION
                     "\" \"User Commands\"\n.SH NAME\nheadrace \\- " +
                     roff("run language models with long contexts on one consumer GPU") +
                     "\n.SH SYNOPSIS\n.B headrace\n.I COMMAND\n[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]\n"
                     ".SH DESCRIPTION\n";
  text += roff(
              "Headrace generates text whose KV cache may exceed the memory of the GPU: the cache is kept in host "
              "memory, or on disk, and streamed to the GPU. A value in brackets is a default. Every flag can also be "
              "set by the environment variable named with it; the command line takes precedence.") +
          "\n.SH EXAMPLES\n.nf\n" +
          roff(
              "headrace plan -m MODEL -c 128K\nheadrace generate -m MODEL -f long.txt -p 'What does it say?'\n"
              "headrace summarize -m MODEL -o summaries.jsonl documents/") +
          "\n.fi\n";
  for (const Named& command : all_commands(app)) text += roff_command(command);
  return text +
         ".SH \"EXIT STATUS\"\n.TP\n0\nSuccess.\n.TP\n1\nInternal error.\n.TP\n2\nBad command line.\n"
         ".TP\n3\nBad file, model, prompt or document.\n.TP\n4\nThe run does not fit a memory budget.\n"
         ".TP\n5\nA disk or file system failed.\n.TP\n130\nInterrupted.";
}

// ---- bash ----

namespace {

constexpr std::string_view kCompletion =
    R"(# bash completion for headrace: commands and flags; file names everywhere else.
_headrace() {
  local word=${COMP_WORDS[COMP_CWORD]} command=headrace below flags i
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    case "$command" in
@COMMANDS@    esac
    ((i < COMP_CWORD)) && [[ " $below " == *" ${COMP_WORDS[i]} "* ]] || break
    command+=" ${COMP_WORDS[i]}"
  done
  ((i == COMP_CWORD)) || below=""
  COMPREPLY=()
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  elif [[ -n $below ]]; then
    COMPREPLY=($(compgen -W "$below" -- "$word"))
  fi
}
complete -o default -F _headrace headrace)";

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string cases;
  for (const auto& [name, command] : all_commands(app)) {
    std::string below, flags;
    for (const CLI::App* const each : command->get_subcommands({})) below += " " + each->get_name();
    for (const CLI::Option* const option : shown_options(*command)) {
      for (const std::string& flag : typed_names(*option)) flags += " " + flag;
    }
    cases += "      \"" + name + "\") below=\"" + (below.empty() ? "" : below.substr(1)) + "\" flags=\"" +
             (flags.empty() ? "" : flags.substr(1)) + "\" ;;\n";
  }
  std::string text(kCompletion);
  constexpr std::string_view kPlace = "@COMMANDS@";
  return text.replace(text.find(kPlace), kPlace.size(), cases);
}

}  // namespace headrace
