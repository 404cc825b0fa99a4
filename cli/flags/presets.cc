#include "cli/flags/presets.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr char kName[] = "--preset";

// SpecPV (arXiv 2512.02337) as in its code: 256 blocks of 16 tokens, 2 blocks of sinks, 8 of the window, max(q.Kmax,
// q.Kmin) averaged over the tree's queries, a refresh once more than 20 tokens are accepted; EAGLE-3 with a full cache.
Preset specpv() {
  const std::vector<std::string> full = {"--verify=full"},
                                 no_blocks = {"--verify=full", "--partial-kv=int8", "--partial-kv=int4"},
                                 no_tree = {"--spec-type=none", "--spec-type=ngram-simple"};
  return {.name = "specpv",
          .source = "SpecPV, arXiv 2512.02337",
          .settings = {{"--spec-type", "draft-eagle3"},
                       {"--tree", "eagle2:60,7,10", no_tree},
                       {"--draft-window", "0", {"--spec-type=none", "--spec-type=ngram-simple", "--draft-cache"}},
                       {"--verify", "approximate"},
                       {"--partial-kv", "blocks", full},
                       {"--partial-budget,--budgets,--budget", "4096", no_blocks},
                       {"--refresh-interval,--intervals,--interval", "20", full},
                       {"--block-score", "specpv", no_blocks},
                       {"--block-reduce", "mean", no_blocks},
                       {"--block-queries", "tree", no_blocks},
                       {"--block-window", "128", no_blocks}},
          .differences = {"the window begins at a multiple of 64 tokens, so it has 128 to 191 tokens and not 128",
                          "no tokens between the blocks and the window are skipped (SpecPV: up to 15)",
                          "partial steps begin at 4,288 tokens (SpecPV: 4,257)",
                          "the tree has 60 nodes, where SpecPV's scripts time 40 to 60 and choose",
                          "block scores are summed in f32 (SpecPV: bf16)", "a refresh corrects the draft's rows, too",
                          "the draft's RoPE is its config's; SpecPV's code has --draft-rope-theta 10000 with YaRN"}};
}

// Whether a flag or variable beside the preset has this value: "--verify=full". Without a value: any.
bool given(const CLI::App& app, const std::string& setting) {
  const size_t equals = setting.find('=');
  const CLI::Option* const option = app.get_option_no_throw(setting.substr(0, equals));
  if (option == nullptr || option->count() == 0) return false;
  return equals == std::string::npos || option->results().back() == setting.substr(equals + 1);
}

// Null: the command has none of these flags.
CLI::Option* find_option(CLI::App& app, const std::string& flags) {
  for (size_t begin = 0; begin < flags.size();) {
    const size_t end = std::min(flags.find(',', begin), flags.size());
    if (CLI::Option* const option = app.get_option_no_throw(flags.substr(begin, end - begin))) return option;
    begin = end + 1;
  }
  return nullptr;
}

const Preset* find_preset(const std::string& name) {
  const auto found = std::find_if(presets().begin(), presets().end(), [&](const Preset& p) { return p.name == name; });
  return found == presets().end() ? nullptr : &*found;
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Preset& preset : presets()) all.push_back(preset.name);
  return all;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {specpv()};
  return all;
}

Flag preset_flag(std::string* out) {
  const SetFlag set = [out](const std::string& value) {
    if (find_preset(value) == nullptr) return not_one_of(value, names());
    *out = value;
    return std::string();
  };
  return {kName, "NAME", set,
          "Draft, tree and verification as a paper published them; flags beside it win. specpv: --verify approximate "
          "with EAGLE-3 (-md HEAD) and SpecPV's blocks"};
}

void apply_preset(CLI::App& app) {
  const CLI::Option* const chosen = app.get_option_no_throw(kName);
  if (chosen == nullptr || chosen->count() == 0) return;
  const Preset* const preset = find_preset(chosen->results().back());
  CHECK(preset != nullptr, "preset=", chosen->results().back());
  std::vector<std::pair<CLI::Option*, std::string>> values;  // all are found before one of them counts as given
  for (const PresetSetting& setting : preset->settings) {
    CLI::Option* const option = find_option(app, setting.flags);
    const bool idle = std::any_of(setting.unless.begin(), setting.unless.end(),
                                  [&](const std::string& other) { return given(app, other); });
    if (option != nullptr && option->count() == 0 && !idle) values.emplace_back(option, setting.value);
  }
  for (const auto& [option, value] : values) {
    option->add_result(value);
    option->run_callback();
  }
}

std::string preset_note(const std::string& name) {
  const Preset* const preset = find_preset(name);
  if (preset == nullptr) return {};
  std::string text =
      str("preset ", name, " (", preset->source, "); what differs, unless flags beside it say otherwise: ");
  for (const std::string& difference : preset->differences) {
    text += (&difference == preset->differences.data() ? "" : "; ") + difference;
  }
  return text;
}

}  // namespace headrace
