#include "cli/flags/args.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <variant>

#include "cli/flags/check_flags.h"
#include "cli/flags/help.h"
#include "cli/flags/manual.h"
#include "cli/flags/parser.h"
#include "cli/flags/presets.h"
#include "runtime/base/nearest.h"

namespace headrace {
namespace {

using Variables = std::set<std::string>;

// CLI11 expects the last argument first.
std::vector<std::string> in_reverse(const std::vector<std::string>& args) {
  std::vector<std::string> reversed;
  bool only_names = false;  // after --, only file names follow
  for (const std::string& arg : args) {
    if (arg == "--" && !only_names) {
      only_names = true;
      continue;
    }
    std::string name = only_names && arg.size() > 1 && arg.front() == '-' ? "./" + arg : arg;
    for (const auto& [alias, long_name] : kFlagAliases) {
      if (!only_names && arg == alias) name = long_name;
    }
    reversed.push_back(std::move(name));
  }
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

// The command named by the first arguments, in `parser`; `path` is its name: "cache list".
CLI::App& find_command(Parser& parser, const std::vector<std::string>& args, std::string* path) {
  CLI::App* at = &parser.app;
  size_t depth = 0;
  for (; depth < args.size(); ++depth) {
    const std::vector<CLI::App*> below =
        at->get_subcommands([&](CLI::App* app) { return app->get_name() == args[depth]; });
    if (below.empty()) break;
    *path += (path->empty() ? "" : " ") + args[depth];
    at = below.front();
  }
  const bool missing = depth == args.size(), flag = !missing && args[depth].starts_with('-');
  if (at->get_require_subcommand_min() == 0 || flag) return *at;
  std::string list;
  std::vector<std::string> names;
  for (const CLI::App* const each : at->get_subcommands({})) {
    names.push_back(each->get_name());
    list += (list.empty() ? "" : ", ") + names.back();
  }
  if (missing) usage_error(*path, "a command is needed: " + list);
  usage_error(*path, "'" + args[depth] + "' is not one of its commands: " + list + did_you_mean(args[depth], names));
}

// Parses the command line, and only these variables of the environment. Throws CLI::ExcludesError for flags that
// exclude each other, another CLI::ParseError for a bad flag or value, and Error for a missing one.
Command read(const std::vector<std::string>& args, const Variables& variables) {
  const auto parser = std::make_unique<Parser>();
  std::string path;
  CLI::App* const command = &find_command(*parser, args, &path);
  const auto drop_variables = [&](const auto& self, CLI::App& app) -> void {
    for (CLI::Option* const option : app.get_options()) {
      if (&app != command || !variables.contains(option->get_envname())) option->envname("");
    }
    for (CLI::App* const below : app.get_subcommands({})) self(self, *below);
  };
  drop_variables(drop_variables, parser->app);
  std::vector<std::string> reversed = in_reverse(args);
  parser->app.parse(reversed);
  if (parser->quality_app->parsed() && command != parser->quality_app) {
    usage_error("bench", "quality must follow bench directly, before all flags");
  }
  apply_preset(*command);
  return parser->chosen();
}

enum class Outcome { kFine, kExcluded };

// Something missing may come from another variable, and is ignored here.
Outcome try_read(const std::vector<std::string>& args, const Variables& variables) {
  try {
    (void)read(args, variables);
  } catch (const CLI::ExcludesError&) {
    return Outcome::kExcluded;
  } catch (const Error&) {
  }
  return Outcome::kFine;
}

// Whether the command asks for partial steps without a mode or a draft.
bool asks_for_partial(const std::vector<std::string>& args, const Variables& variables) {
  try {
    return std::visit(
        [](const auto& command) {
          if constexpr (requires { command.engine.verify; }) {
            const EngineOptions& engine = command.engine;
            const bool drafts = engine.draft.type != SpecType::kAuto && engine.draft.type != SpecType::kNone;
            return !engine.verify.names_mode() && !drafts && engine.verify.names_partial();
          }
          return false;
        },
        read(args, variables));
  } catch (const CLI::ParseError&) {
    return false;
  } catch (const Error&) {
    return false;
  }
}

// The variables in effect. A variable that excludes a flag of the command line is ignored, and so is one that
// contradicts the command line together with the other variables: a partial budget without a draft.
Variables effective_variables(const std::vector<std::string>& args, const CLI::App& command) {
  Variables effective, excluded;
  // Flags of partial steps ask for them, where --verify auto would have none; variables alone do not.
  const bool partial = asks_for_partial(args, {});
  const auto outcome = [&](const Variables& variables) {
    const Outcome read = try_read(args, variables);
    return read == Outcome::kFine && !partial && asks_for_partial(args, variables) ? Outcome::kExcluded : read;
  };
  for (const CLI::Option* const option : command.get_options()) {
    const std::string& name = option->get_envname();
    const char* const value = name.empty() ? nullptr : std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') continue;
    try {
      (outcome({name}) == Outcome::kFine ? effective : excluded).insert(name);
    } catch (const CLI::ParseError& error) {
      throw CLI::ValidationError(std::string(error.what()) + " (from " + name + ")");
    }
  }
  const Variables alone = effective;
  for (const std::string& name : excluded) {
    Variables with = alone;
    with.insert(name);
    if (outcome(with) == Outcome::kFine) effective.insert(name);
  }
  return effective;
}

}  // namespace

Command parse_args(const std::vector<std::string>& args) {
  const auto table = std::make_unique<Parser>();
  std::string path;
  const CLI::App& command = find_command(*table, args, &path);
  const auto words = static_cast<size_t>(std::count(path.begin(), path.end(), ' ') + (path.empty() ? 0 : 1));
  try {
    check_flags(command, path, std::span(args).subspan(words));
    (void)try_read(args, {});  // reports the errors that do not depend on the environment
    return read(args, effective_variables(args, command));
  } catch (const CLI::CallForHelp&) {
    return HelpArgs{help_text(command, path, /*all=*/false, terminal_columns())};
  } catch (const HelpWithAllFlags&) {
    return HelpArgs{help_text(command, path, /*all=*/true, terminal_columns())};
  } catch (const CLI::CallForVersion& version) {
    return HelpArgs{std::string(version.what()) + "\n"};
  } catch (const WriteManual& manual) {
    ManualArgs files{.folder = manual.folder, .files = man_pages(table->app)};
    for (const auto completion : {bash_completion, zsh_completion, fish_completion})
      files.files.push_back(completion(table->app));
    return files;
  } catch (const ListDevices&) {
    return DevicesArgs{};
  } catch (const ListShapes&) {
    return ShapesArgs{};
  } catch (const CLI::ParseError& error) {
    usage_error(path, error.what());
  }
}

}  // namespace headrace
