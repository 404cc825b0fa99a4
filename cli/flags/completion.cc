// The completions of the three shells. Each offers commands, flags, and the values of a flag that has words; file names
// where a value is one.
#include <string_view>

#include "cli/flags/check_flags.h"
#include "cli/flags/flags.h"
#include "cli/flags/manual.h"
#include "cli/flags/named_command.h"

namespace headrace {
namespace {

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::vector<std::string> names_below(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* const each : command.get_subcommands({})) names.push_back(each->get_name());
  return names;
}

bool has_value(const CLI::Option& option) { return option.get_expected_max() > 0; }

// Whether the value may be the name of a file, by its name in the help: "FILE|DIR...".
bool is_file(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  for (const char* kind : {"FILE", "DIR", "MODEL"}) {
    if (type.find(kind) != std::string::npos) return true;
  }
  return false;
}

// The beginning of a description, as a list of flags has room for: "Data type of the cached keys: bf16, ..." -> "Data
// type of the cached keys".
std::string brief(const std::string& description) {
  size_t end = description.size();
  for (const char* stop : {": ", "; ", " (", " [", ". "}) end = std::min(end, description.find(stop));
  return description.substr(0, end);
}

// ---- bash ----

// `values`: of each flag that has some, "--kv,auto,device,host".
constexpr std::string_view kBash =
    R"(# bash completion for headrace: commands, flags and their values; file names everywhere else.
_headrace() {
  local word=${COMP_WORDS[COMP_CWORD]} flag="" command=headrace below words flags values i
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    case "$command" in
@COMMANDS@    esac
    ((i < COMP_CWORD)) && [[ " $below " == *" ${COMP_WORDS[i]} "* ]] || break
    command+=" ${COMP_WORDS[i]}"
  done
  ((i == COMP_CWORD)) || below=""
  flag=${COMP_WORDS[COMP_CWORD - 1]}
  if [[ $flag == "=" ]]; then  # bash divides --kv=auto into three words
    flag=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $word == "=" ]]; then
    word=""
  fi
  COMPREPLY=()
  for i in $values; do
    [[ $i == "$flag,"* ]] || continue
    i=${i#*,}
    COMPREPLY=($(compgen -W "${i//,/ }" -- "$word"))
    return
  done
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  elif [[ -n $below$words && $flag != -* ]]; then
    COMPREPLY=($(compgen -W "$below $words" -- "$word"))
  fi
}
complete -o default -F _headrace headrace
)";

std::string bash_case(const NamedCommand& command) {
  std::vector<std::string> words, flags, values;
  for (const CLI::Option* const option : shown_options(*command.app)) {
    const std::vector<std::string> offered = offered_words(*option);
    if (option->get_positional()) words = offered;
    for (const std::string& flag : typed_names(*option)) {
      flags.push_back(flag);
      if (!offered.empty()) values.push_back(flag + "," + joined(offered, ","));
    }
  }
  return "      \"" + command.name + "\") below=\"" + joined(names_below(*command.app), " ") + "\" words=\"" +
         joined(words, " ") + "\" flags=\"" + joined(flags, " ") + "\"\n        values=\"" + joined(values, " ") +
         "\" ;;\n";
}

// ---- zsh ----

// Within single quotes of a specification of _arguments.
std::string zsh_text(const std::string& text) {
  std::string escaped = replaced(text, "\\", "\\\\");
  for (const char* special : {"[", "]", ":"}) escaped = replaced(escaped, special, std::string("\\") + special);
  return replaced(escaped, "'", "'\\''");
}

std::string zsh_action(const CLI::Option& option) {
  const std::vector<std::string> words = offered_words(option);
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(zsh_text(word));
  const std::string list = "(" + joined(quoted, " ") + ")";
  if (words.empty()) return is_file(option) ? "_files" : " ";
  return is_file(option) ? "_alternative \"words\\:word\\:" + list + "\" \"files\\:file\\:_files\"" : list;
}

std::string zsh_option(const CLI::Option& option) {
  const std::string value =
      has_value(option) ? ":" + zsh_text(option.get_type_name()) + ":" + zsh_action(option) : std::string();
  if (option.get_positional()) return "    '*" + value + "' \\\n";
  const std::vector<std::string> names = typed_names(option);
  std::string text;
  for (const std::string& name : names) {
    const std::string assigned = has_value(option) && name.starts_with("--") ? "=" : "";
    text += "    '(" + joined(names, " ") + ")" + name + assigned + "[" + zsh_text(brief(option.get_description())) +
            "]" + value + "' \\\n";
  }
  return text;
}

std::string zsh_function(const NamedCommand& command) {
  const std::string name = joined_name(command.name, '_');
  const std::vector<const CLI::App*> below = command.app->get_subcommands({});
  std::string text =
      "_" + name + "() {\n  local curcontext=$curcontext state line\n  typeset -A opt_args\n  _arguments -C \\\n";
  for (const CLI::Option* const option : shown_options(*command.app)) {
    if (!option->get_positional() || below.empty()) text += zsh_option(*option);
  }
  if (below.empty()) return text + "    && return 0\n}\n\n";
  std::string list, cases;
  for (const CLI::App* const each : below) {
    list += (list.empty() ? "" : " ") + each->get_name() + "\\:\"" + zsh_text(each->get_description()) + "\"";
    cases += "    " + each->get_name() + ") _" + name + "_" + each->get_name() + " ;;\n";
  }
  return text + "    '1:command:((" + list + "))' \\\n    '*::argument:->below' && return 0\n" +
         "  [[ $state == below ]] && case $line[1] in\n" + cases + "  esac\n}\n\n";
}

// ---- fish ----

constexpr std::string_view kFish = R"(# fish completion for headrace.
function __headrace_at --description 'Whether the words so far name this command of headrace'
    set -l command headrace
    for word in (commandline -opc)[2..]
        contains -- "$command $word" @COMMANDS@; or break
        set command "$command $word"
    end
    test "$command" = "$argv"
end

)";

std::string fish_text(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_option(const std::string& at, const CLI::Option& option) {
  const std::vector<std::string> words = offered_words(option);
  const std::string offered = words.empty() ? "" : " -a " + fish_text(joined(words, " "));
  if (option.get_positional()) return words.empty() ? "" : at + offered + "\n";
  std::string names;
  for (const std::string& name : typed_names(option)) {
    const bool is_long = name.starts_with("--");
    names += (is_long ? " -l " + name.substr(2) : (name.size() == 2 ? " -s " : " -o ") + name.substr(1));
  }
  const char* const value = !has_value(option) ? "" : is_file(option) ? " -r" : " -x";
  return at + names + value + offered + " -d " + fish_text(brief(option.get_description())) + "\n";
}

std::string fish_command(const NamedCommand& command) {
  const std::string at = "complete -c headrace -n " + fish_text("__headrace_at " + command.name);
  std::string text;
  for (const CLI::App* const each : command.app->get_subcommands({})) {
    text += at + " -f -a " + each->get_name() + " -d " + fish_text(each->get_description()) + "\n";
  }
  for (const CLI::Option* const option : shown_options(*command.app)) text += fish_option(at, *option);
  return text + "\n";
}

}  // namespace

ManualFile bash_completion(const CLI::App& app) {
  std::string cases;
  for (const NamedCommand& command : all_commands(app)) cases += bash_case(command);
  return {"headrace.bash", replaced(std::string(kBash), "@COMMANDS@", cases)};
}

ManualFile zsh_completion(const CLI::App& app) {
  std::string text = "#compdef headrace\n\n";
  for (const NamedCommand& command : all_commands(app)) text += zsh_function(command);
  return {"_headrace", text + "_headrace \"$@\"\n"};
}

ManualFile fish_completion(const CLI::App& app) {
  std::vector<std::string> names;
  std::string text;
  for (const NamedCommand& command : all_commands(app)) {
    names.push_back(fish_text(command.name));
    text += fish_command(command);
  }
  return {"headrace.fish", replaced(std::string(kFish), "@COMMANDS@", joined(names, " ")) + text};
}

}  // namespace headrace
