#include "cli/flags/named_command.h"

#include <algorithm>

namespace headrace {

std::vector<NamedCommand> all_commands(const CLI::App& app) {
  std::vector<NamedCommand> commands = {{app.get_name(), &app}};
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

std::string joined_name(const std::string& name, char between) {
  std::string joined = name;
  std::replace(joined.begin(), joined.end(), ' ', between);
  return joined;
}

}  // namespace headrace
