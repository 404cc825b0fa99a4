// --preset: flags set together, as a paper published them. A preset is a row of a table; a flag or variable beside it
// wins. Thread: one.
#pragma once

#include <string>
#include <vector>

#include "cli/flags/flags.h"

namespace headrace {

// The value of a flag, unless flags beside the preset leave it no effect.
struct PresetSetting {
  std::string flags;  // the first of these that the command has: "--refresh-interval,--intervals"; none: not set
  std::string value;
  std::vector<std::string> unless{};  // "--verify=full"
};

struct Preset {
  std::string name, source;
  std::vector<PresetSetting> settings;
  std::vector<std::string> differences;  // from what was published
};

const std::vector<Preset>& presets();
// Sets `out` to the preset's name.
Flag preset_flag(std::string* out);
// Once the command line is parsed: what the chosen preset sets and neither a flag nor a variable has set.
void apply_preset(CLI::App& app);
// For the report: what differs from the paper. Empty without a preset.
std::string preset_note(const std::string& name);

}  // namespace headrace
