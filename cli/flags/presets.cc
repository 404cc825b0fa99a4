#include "cli/flags/presets.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr char kName[] = "--preset";

// What makes settings of partial steps, of blocks and of trees idle.
const std::vector<std::string> kFull = {"--verify=full"},
                               kNoBlocks = {"--verify=full", "--partial-kv=int8", "--partial-kv=int4"},
                               kNoTree = {"--spec-type=none", "--spec-type=ngram-simple"};

// SpecPV (arXiv 2512.02337) as in its code: 256 blocks of 16 tokens, 2 blocks of sinks, 8 of the window, max(q.Kmax,
// q.Kmin) averaged over the tree's queries, a refresh once more than 20 tokens are accepted; EAGLE-3 with a full cache.
Preset specpv() {
  return {.name = "specpv",
          .source = "SpecPV, arXiv 2512.02337",
          .settings = {{"--spec-type", "draft-eagle3"},
                       {"--tree", "eagle2:60,7,10", kNoTree},
                       {"--draft-window", "0", {"--spec-type=none", "--spec-type=ngram-simple", "--draft-cache"}},
                       {"--verify", "approximate"},
                       {"--partial-kv", "blocks", kFull},
                       {"--partial-budget,--budgets,--budget", "4096", kNoBlocks},
                       {"--refresh-interval,--intervals,--interval", "20", kFull},
                       {"--block-score", "specpv", kNoBlocks},
                       {"--block-reduce", "mean", kNoBlocks},
                       {"--block-queries", "tree", kNoBlocks},
                       {"--block-window", "128", kNoBlocks}},
          .differences = {"the window begins at a multiple of 64 tokens, so it has 128 to 191 tokens and not 128",
                          "no tokens between the blocks and the window are skipped (SpecPV: up to 15)",
                          "partial steps begin at 4,288 tokens (SpecPV: 4,257)",
                          "the tree has 60 nodes, where SpecPV's scripts time 40 to 60 and choose",
                          "block scores are summed in f32 (SpecPV: bf16)", "a refresh corrects the draft's rows, too",
                          "the draft's RoPE is its config's; SpecPV's code has --draft-rope-theta 10000 with YaRN"}};
}

// SpecExtend (arXiv 2505.20776) as in its scripts: 64 chunks of 32 tokens for a head, 32 for a small model, chosen
// every 4 steps; OPT-Tree.
Preset specextend() {
  return {
      .name = "specextend",
      .source = "SpecExtend, arXiv 2505.20776",
      .settings = {{"--spec-type", "draft-eagle3"},
                   {"--draft-cache", "retrieval", {"--spec-type=none", "--spec-type=ngram-simple", "--draft-window=0"}},
                   {"--tree", "opt:50,10,0.7", kNoTree},
                   {"--verify", "full"}},
      .differences = {("where all of the KV cache is on the device, two layers of the middle choose the chunks and not "
                       "the last layer"),
                      "the first chunk and the last 512 tokens are always seen",
                      "chunks are also chosen after the prompt", "the published heads are of EAGLE, not of EAGLE-3"}};
}

// LongSpec (arXiv 2502.17421) as in its code.
Preset longspec() {
  return {
      .name = "longspec",
      .source = "LongSpec, arXiv 2502.17421",
      .settings = {{"--spec-type", "draft-longspec"}, {"--tree", "beams:4,16,16,16,16", kNoTree}, {"--verify", "full"}},
      .differences = {"the layer's own cache has 512 tokens and not the whole text",
                      "the text is plain decoding's at every temperature (LongSpec: at 0)",
                      "rows of accepted tokens are kept, where LongSpec computes them again"}};
}

// TriForce (arXiv 2404.11912) as in its code for one device: a retrieval cache of 4,096 tokens, chains of 6 tokens, a
// small model with a cache of 256.
Preset triforce() {
  return {.name = "triforce",
          .source = "TriForce, arXiv 2404.11912",
          .settings = {{"--spec-type", "draft-simple"},
                       {"--tree", "chain:6", kNoTree},
                       {"--draft-window", "320", {"--spec-type=none", "--spec-type=ngram-simple", "--draft-cache"}},
                       {"--verify", "lossless"},
                       {"--partial-kv", "blocks", kFull},
                       {"--partial-budget,--budgets,--budget", "4096", kNoBlocks},
                       {"--refresh-interval,--intervals,--interval", "6", kFull}},
          .differences = {
              ("blocks of 16 tokens are ranked by Quest's bound and chosen again by each refresh (TriForce: "
               "chunks of 8, by mean keys, once)"),
              "the first 32 and the last 256 to 319 tokens are seen besides",
              "the small model's cache has 320 to 383 tokens (TriForce: 256)",
              "a step may leave more than 6 tokens pending, or as a tree on a GPU", "the text is plain decoding's"}};
}

// MagicDec (arXiv 2408.11049) with StreamingLLM's cache as in its code: the target drafts for itself.
Preset magicdec() {
  return {.name = "magicdec",
          .source = "MagicDec, arXiv 2408.11049",
          .settings = {{"--spec-type", "none"},
                       {"--verify", "lossless"},
                       {"--partial-kv", "blocks", kFull},
                       {"--partial-budget,--budgets,--budget", "256", kNoBlocks},
                       {"--refresh-interval,--intervals,--interval", "7", kFull},
                       {"--block-score", "recent", kNoBlocks}},
          .differences = {"the draft cache has 32 sinks and 512 to 575 recent tokens (MagicDec: 16, and 257 in all)",
                          "pending tokens may be a tree on a GPU", "one sequence runs, not a batch",
                          "it works at every temperature"}};
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
  static const std::vector<Preset> all = {specpv(), specextend(), longspec(), triforce(), magicdec()};
  return all;
}

Flag preset_flag(std::string* out) {
  const auto set = [out](const std::string& value) {
    if (find_preset(value) == nullptr) return not_one_of(value, names());
    *out = value;
    return std::string();
  };
  return {kName, "NAME", SetFlag(set, names()),
          "Draft, tree and verification as a paper published them: specpv, specextend, longspec, triforce or magicdec; "
          "the draft is named with -md, and flags beside it win. With specpv the text may differ"};
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
