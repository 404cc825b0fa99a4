#include "cli/environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string_view>

namespace headrace {
namespace {

constexpr std::array<const char*, 4> kPartial = {"--partial-budget", "--refresh-interval", "--block-score",
                                                 "--block-reduce"};
constexpr std::array<std::string_view, 3> kForms = {"json", "csv", "md"};

bool is_form(const std::string& value) { return std::find(kForms.begin(), kForms.end(), value) != kForms.end(); }

// The command line's flags and the variables' values of one command, and which of the latter count.
class Defaults {
 public:
  Defaults(const CLI::App& app, const std::map<const CLI::Option*, std::string>& variables) : app_(app) {
    for (const CLI::Option* const option : app.get_options()) {
      if (option->count() > 0) given_[option] = option->results().back();
    }
    for (const auto& [option, value] : variables) {
      if (!given_.contains(option)) variables_[option] = value;
    }
  }

  bool counts(const CLI::Option& option, const std::string& value) const {
    return !excluded(option, value) && !means_nothing(option, value);
  }

 private:
  bool command(const char* name) const { return app_.get_name() == name; }
  const CLI::Option* find(const char* flag) const { return app_.get_option_no_throw(flag); }
  bool given(const char* flag) const { return given_.contains(find(flag)); }
  std::string given_value(const char* flag) const { return given(flag) ? given_.at(find(flag)) : ""; }

  // By the command line or by a variable.
  std::string said(const char* flag) const {
    const CLI::Option* const option = find(flag);
    if (given(flag)) return given_.at(option);
    const auto variable = variables_.find(option);
    return variable == variables_.end() || excluded(*option, variable->second) ? "" : variable->second;
  }

  // By what the command line says: the two would be refused together.
  bool excluded(const CLI::Option& option, const std::string& value) const {
    const auto is = [&option](const char* flag) { return option.check_name(flag); };
    const bool form_given = given("--format") || (command("profile") && is_form(given_value("--output")));
    const bool batch = command("summarize");  // whose -o takes the lines that --json would print
    if (is("--model")) return given("--shape");
    if (is("--shape")) return given("--model");
    if (is("--chat-template")) return given("--chat-template-file") || given("--no-chat-template");
    if (is("--chat-template-file")) return given("--chat-template") || given("--no-chat-template");
    if (is("--no-chat-template")) {
      return given("--chat-template") || given("--chat-template-file") || given("--system");
    }
    if (is("--system")) return given("--no-chat-template");
    if (is("--gpu")) return given_value("--device") == "cpu";
    if (is("--device")) return value == "cpu" && given("--gpu");
    if (is("--verify"))
      return value == "full" &&
             std::any_of(kPartial.begin(), kPartial.end(), [this](auto* flag) { return given(flag); });
    if (is("--json")) return form_given || (batch && given("--output"));
    if (is("--format")) return form_given || given("--json");
    if (is("--output"))
      return (batch && given("--json")) || (command("profile") && is_form(value) && (form_given || given("--json")));
    return false;
  }

  // In a run of this kind, whoever said what kind it is.
  bool means_nothing(const CLI::Option& option, const std::string& value) const {
    if (command("plan") && option.check_name("--predict")) return value == "-1";  // a plan needs a number
    const bool partial =
        std::any_of(kPartial.begin(), kPartial.end(), [&](const char* flag) { return option.check_name(flag); });
    if (!partial || find("--verify") == nullptr) return false;
    const std::string mode = said("--verify"), draft = said("--spec-type");
    return mode == "full" || (mode.empty() && (draft.empty() || draft == "none"));
  }

  const CLI::App& app_;
  std::map<const CLI::Option*, std::string> given_, variables_;
};

}  // namespace

Environment::Environment(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    if (option->get_envname().empty()) continue;
    names_.emplace_back(option, option->get_envname());
    option->envname("");
  }
  for (CLI::App* const command : app.get_subcommands({})) {
    Environment below(*command);
    names_.insert(names_.end(), below.names_.begin(), below.names_.end());
    below.names_.clear();
  }
}

void Environment::restore() {
  for (const auto& [option, name] : names_) option->envname(name);
}

void Environment::apply(CLI::App& app) const {
  const std::vector<CLI::Option*> options = app.get_options();
  std::map<const CLI::Option*, std::string> values, from;
  for (const auto& [option, name] : names_) {
    const char* const value = std::getenv(name.c_str());
    const bool here = std::find(options.begin(), options.end(), option) != options.end();
    if (!here || value == nullptr || *value == '\0') continue;
    values[option] = value;
    from[option] = name;
  }
  const Defaults defaults(app, values);
  for (CLI::Option* const option : options) {
    const auto value = values.find(option);
    if (value == values.end() || option->count() > 0 || !defaults.counts(*option, value->second)) continue;
    try {
      option->add_result(value->second);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      throw CLI::ValidationError(std::string(error.what()) + " (from " + from[option] + ")");
    }
  }
}

}  // namespace headrace
