#include "cli/args.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/environment.h"
#include "cli/parser.h"

namespace headrace {
namespace {

// llama.cpp's flags of one dash and several letters, which CLI11 would read as several flags.
constexpr std::array<std::pair<const char*, const char*>, 5> kAliases = {{
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-dev", "--device"},
    {"-md", "--model-draft"},
    {"-sys", "--system"},
}};

constexpr std::array<std::string_view, 7> kCommands = {"generate", "summarize", "inspect", "bench",
                                                       "plan",     "profile",   "cache"};
bool is_command(const std::string& name) {
  return std::find(kCommands.begin(), kCommands.end(), name) != kCommands.end();
}
bool is_cache_action(const std::string& name) { return name == "list" || name == "verify" || name == "prune"; }

// As CLI11 takes them: the last first.
std::vector<std::string> in_reverse(const std::vector<std::string>& args) {
  std::vector<std::string> reversed;
  bool only_names = false;  // after --, where all is a file's name
  for (const std::string& arg : args) {
    if (arg == "--" && !only_names) {
      only_names = true;
      continue;
    }
    std::string name = only_names && arg.size() > 1 && arg.front() == '-' ? "./" + arg : arg;
    for (const auto& [alias, long_name] : kAliases) {
      if (!only_names && arg == alias) name = long_name;
    }
    reversed.push_back(std::move(name));
  }
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

}  // namespace

Command parse_args(const std::vector<std::string>& args) {
  if (!args.empty() && !args.front().starts_with('-') && !is_command(args.front())) {
    usage_error("",
                "'" + args.front() + "' is no command: generate, summarize, inspect, bench, plan, profile or cache");
  }
  const auto parser = std::make_unique<Parser>();
  const std::string command = !args.empty() && is_command(args.front()) ? args.front() : "";
  const bool quality = command == "bench" && args.size() > 1 && args[1] == "quality";
  const bool cache_action = command == "cache" && args.size() > 1 && is_cache_action(args[1]);
  if (command == "cache" && !cache_action && (args.size() == 1 || !args[1].starts_with('-'))) {
    usage_error("cache", (args.size() == 1 ? "" : "'" + args[1] + "' is none of its actions: ") +
                             "list, verify or prune, and a folder, are what it takes");
  }
  const std::string path = quality || cache_action ? command + " " + args[1] : command;
  Environment environment(parser->app);
  try {
    std::vector<std::string> reversed = in_reverse(args);
    parser->app.parse(reversed);
    if (CLI::App* const chosen = parser->innermost(); chosen != nullptr) environment.apply(*chosen);
  } catch (const CLI::CallForHelp&) {
    environment.restore();
    if (quality) return HelpArgs{parser->quality_app->help("headrace bench")};
    return HelpArgs{command.empty() ? parser->app.help() : parser->app.get_subcommand(command)->help("headrace")};
  } catch (const CLI::CallForVersion& version) {
    return HelpArgs{std::string(version.what()) + "\n"};
  } catch (const ListDevices&) {
    return DevicesArgs{};
  } catch (const ListShapes&) {
    return ShapesArgs{};
  } catch (const CLI::ParseError& error) {
    usage_error(path, error.what());
  }
  if (parser->quality_app->parsed() && !quality) {
    usage_error("bench", "quality stands right behind bench, before all flags");
  }
  return parser->chosen();
}

}  // namespace headrace
