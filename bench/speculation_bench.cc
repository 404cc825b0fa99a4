// The gain of a draft and of partial verification on real texts: tokens per second with and without them, by length, KV
// mode, temperature, tree size, verification mode and refresh interval, and whether the text stayed the same. One JSON
// object on stdout, the machine named.
//   speculation_bench MODEL DRAFT TEXT... [--tokens 4096,16384] [--kv device,host] [--temp 0,0.8]
//                     [--top-p 1] [--nodes auto,60] [-n 128] [--device cuda]
//                     [--spec-type draft-eagle3,ngram-simple]
//                     [--verify full,lossless,approximate] [--interval auto,20] [--alone]
//                     [--partial-kv auto,int8,int4,blocks] [--budget 4096]
//                     [--pending auto,chain,64x384] [--step-costs 7.6,150]
//                     [--rope-scaling yarn] [--rope-scale 2] [--shape] [--weights q4_k_m]
//                     [--instruction TEXT] [--block-score quest] [--block-reduce mean]
//                     [--tree auto] [--draft-window 1024] [--draft-cache retrieval:32] [--draft-rope-theta 10000]
//                     [--preset specpv] [--trace FILE]
//                     [--weights-place host] [--weights-substitute q4_k]
// The last four lines and --spec-type are flags of headrace; --nodes bounds each step's tree, --tree shapes all of
// them.
// --alone: partial verification without the draft, too.
// --pending: GenerateOptions::pending of lossless runs: what suits the device, a chain, or a tree whose partial steps
// compute so many nodes at a time and in all; with @0.05, one like a copy's that keeps nodes of at least that chance.
// --budget: of blocks, where --partial-kv names them. --step-costs: by which auto chooses refreshes of a tree, in the
// place of what steps take here, in ms: of a partial step with its draft, of a refresh; rows then say how fast that
// would be.
// --trace: of all runs, which are slower with it.
// --rope-scaling, --rope-scale: the target's context beyond that of its training.
// --shape: MODEL is a shape (headrace bench --list-shapes) with random weights of the type --weights, and each TEXT
// names a prompt of random ids. DRAFT is - where --spec-type has no file: ngram-simple, draft-mtp, and none with
// --alone.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "bench/program.h"
#include "bench/speculation_rows.h"
#include "cli/flags/flag_groups.h"
#include "cli/flags/presets.h"
#include "runtime/base/random.h"
#include "runtime/commands/report_json.h"
#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"

namespace headrace::bench {
namespace {

struct Args : TextArgs {
  std::string draft_path, weights = "keep", cache_type = "bf16", trace, tree = "auto";  // `tree`: as it was named
  std::string preset;
  DraftOptions draft{.type = SpecType::kEagle3};
  VerifyOptions blocks{};  // how they are scored
  uint64_t vram_bytes = 0;
  EngineOptions placed;  // where weights are
  std::vector<std::string> nodes = {"auto"};
  float top_p = 1.0f;
  int64_t plain_tokens = 0;  // of plain decoding; 0: as many
  std::vector<std::string> verify = {"full"}, intervals = {"auto"}, pending = {"auto"};
  std::vector<std::string> partial_kv = {"auto"};
  std::vector<int64_t> budgets = {kUsualBudget};
  bool alone = false, whole_rows = false, shape = false;
  std::vector<double> step_costs = {0, 0};
  RopeOverrides rope;
};

// Those of headrace; DRAFT is its --model-draft.
void add_draft_flags(CLI::App& app, Args& args) {
  std::vector<Flag> flags = draft_flags(&args.draft);
  std::erase_if(flags, [](const Flag& flag) { return flag.names == "--model-draft"; });
  for (Flag& flag : flags) {
    if (flag.names != "--tree") continue;
    flag.set = [set = flag.set, &args](const std::string& value) { return set(args.tree = value); };
  }
  headrace::add_flags(app, "", flags);
  headrace::add_flags(app, "", block_flags(&args.blocks));
  headrace::add_flags(app, "", {preset_flag(&args.preset)});
  headrace::add_flags(app, "", {weights_place_flag(&args.placed), weights_substitute_flag(&args.placed)});
}

void add_options(CLI::App& app, Args& args) {
  app.add_option("model", args.model)->required();
  app.add_option("draft", args.draft_path)->required();
  add_text_flags(app, args);
  add_draft_flags(app, args);
  app.add_option("--nodes", args.nodes)->delimiter(',');
  app.add_option("--top-p", args.top_p);
  app.add_option("--plain-tokens", args.plain_tokens);
  add_size(app, "--vram", &args.vram_bytes);
  app.add_option("--weights", args.weights)->check([](const std::string& name) {
    return name == "keep" || find_weight_mixture(name) != nullptr ? std::string() : "keep or " + weight_mixture_names();
  });
  app.add_option("--cache-type", args.cache_type)->check(CLI::IsMember({"bf16", "int8"}));
  app.add_option("--verify", args.verify)->delimiter(',')->check(CLI::IsMember({"full", "lossless", "approximate"}));
  app.add_option("--interval", args.intervals)->delimiter(',');
  app.add_option("--partial-kv", args.partial_kv)
      ->delimiter(',')
      ->check(CLI::IsMember({"auto", "blocks", "int4", "int8"}));
  app.add_flag("--shape", args.shape);
  app.add_option("--budget", args.budgets)->delimiter(',');
  app.add_option("--pending", args.pending)->delimiter(',');
  app.add_flag("--alone", args.alone);
  app.add_flag("--whole-rows", args.whole_rows, "refreshes stream rows, not what an int8 copy lacks of them");
  app.add_option("--trace", args.trace);
  app.add_option("--step-costs", args.step_costs)->delimiter(',')->expected(2);
  add_choice<std::optional<RopeScaling>>(app, "--rope-scaling", &args.rope.scaling,
                                         {{"linear", RopeScaling::kLinear}, {"yarn", RopeScaling::kYarn}});
  app.add_option("--rope-scale", args.rope.factor)->check(CLI::Range(1.0, 1024.0));
}

EngineOptions engine_options(const Args& args) {
  EngineOptions options = engine_options(static_cast<const TextArgs&>(args));
  options.device.vram_bytes = args.vram_bytes;
  options.weights_place = args.placed.weights_place;
  options.substitute = args.placed.substitute;
  options.device.trace_path = args.trace;
  options.want_tokenizer = !args.shape;
  if (!args.shape && args.weights == "q8_0") options.weights = WeightPolicy::kQ8_0;
  if (!args.shape && args.weights == "q4_k") options.weights = WeightPolicy::kQ4K;
  if (!args.shape && options.weights == WeightPolicy::kKeep && args.weights != "keep")
    throw_error(ExitCode::kUsage, "--weights", args.weights + " needs --shape");
  if (args.cache_type == "int8") options.cache_type_k = options.cache_type_v = DType::kInt8;
  if (args.whole_rows) options.remainders = false;
  options.rope = args.rope;
  options.draft = args.draft;
  if (args.draft_path != "-") options.draft.model = args.draft_path;
  return options;
}

// The value of --spec-type.
std::string spec_name(const DraftOptions& draft) {
  return str(spec_type_name(draft.type), draft.look_up ? str(",", spec_type_name(SpecType::kNgram)) : "");
}

// Null: the model is a file.
std::unique_ptr<Checkpoint> shape_checkpoint(const Args& args) {
  if (!args.shape) return nullptr;
  Shape shape = find_shape(args.model);
  const int64_t longest = *std::ranges::max_element(args.tokens) + std::max(args.new_tokens, args.plain_tokens) + 1;
  shape.config.max_positions = std::max(shape.config.max_positions, longest);
  return make_random_checkpoint(shape.name, shape.config, 0, find_weight_mixture(args.weights));
}

std::vector<int32_t> random_ids(int64_t count, int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(random64(0, i) % static_cast<uint64_t>(vocab));
  return ids;
}

int64_t count_of(const char* flag, std::string_view text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), count);
  if (error != std::errc() || end != text.end() || count < 1) {
    throw_error(ExitCode::kUsage, flag, str("'", text, "' is no number of at least 1"));
  }
  return count;
}

PendingTreeLimits tree_of(std::string_view sizes) {  // "64x384@0.05"
  const size_t at = sizes.find('@');
  const std::string least(at == std::string_view::npos ? "" : sizes.substr(at + 1));
  sizes = sizes.substr(0, at);
  const size_t x = sizes.find('x');
  PendingTreeLimits limits{.width = count_of("--pending", sizes.substr(0, x))};
  if (x != std::string_view::npos) limits.grown = limits.nodes = count_of("--pending", sizes.substr(x + 1));
  if (!least.empty()) limits.least = std::stod(least), limits.sharpness = 32, limits.unranked = 0.0005;
  return limits;
}

VerifyMode verify_mode(const std::string& name) {
  for (const VerifyMode mode : {VerifyMode::kLossless, VerifyMode::kApproximate}) {
    if (name == verify_mode_name(mode)) return mode;
  }
  return VerifyMode::kFull;
}

PartialKind partial_kind(const std::string& name) {
  for (const PartialKind kind : {PartialKind::kBlocks, PartialKind::kInt4, PartialKind::kInt8}) {
    if (name == partial_kind_name(kind)) return kind;
  }
  return PartialKind::kAuto;
}

class Bench {
 public:
  explicit Bench(const Args& args) : args_(args), engine_(engine_options(args), shape_checkpoint(args), nullptr) {}

  nlohmann::ordered_json run() {
    nlohmann::ordered_json out = {{"machine", machine_json(read_machine(), engine_.device().name())},
                                  {"model", engine_.model_path()},
                                  {"draft", spec_name(args_.draft)},
                                  {"new_tokens", args_.new_tokens},
                                  {"rows", nlohmann::ordered_json::array()}};
    generate(args_.shape ? random_ids(64, engine_.config().vocab) : engine_.encode({"", "Say something."}),
             {.max_tokens = 40, .ignore_eos = true});  // warm-up
    for (const std::string& text : args_.texts) {
      for (const int64_t tokens : args_.tokens) {
        const std::vector<int32_t> prompt = args_.shape ? random_ids(tokens, engine_.config().vocab)
                                                        : prompt_of(engine_, text, tokens, args_.instruction);
        for (const std::string& kv : args_.kv) {
          for (const float temperature : args_.temperatures) {
            compare({{"text", std::filesystem::path(text).stem().string()},
                     {"prompt_tokens", prompt.size()},
                     {"kv", kv},
                     {"temperature", temperature}},
                    prompt, kv, temperature, &out["rows"]);
          }
        }
      }
    }
    engine_.write_trace();
    return out;
  }

 private:
  GenerateResult generate(const std::vector<int32_t>& prompt, const GenerateOptions& options) {
    return engine_.generate(prompt, options, nullptr);
  }

  void compare(const nlohmann::ordered_json& what, const std::vector<int32_t>& prompt, const std::string& kv,
               float temperature, nlohmann::ordered_json* rows) {
    GenerateOptions options;
    options.max_tokens = args_.plain_tokens > 0 ? args_.plain_tokens : args_.new_tokens;
    options.kv = kv_mode(kv);
    options.sampling.temperature = temperature;
    options.sampling.top_p = args_.top_p;
    options.ignore_eos = true;
    options.speculate = false;
    options.verify = args_.blocks;
    options.verify->mode = VerifyMode::kFull;
    const GenerateResult plain = generate(prompt, options);
    add(what, row_of(plain), rows);
    options.max_tokens = args_.new_tokens;
    for (const bool drafts : {false, true}) {
      if (drafts ? args_.draft.type == SpecType::kNone : !args_.alone) continue;
      options.speculate = drafts;
      for (const std::string& name : args_.verify) {
        if (!drafts && verify_mode(name) == VerifyMode::kFull) continue;
        options.verify->mode = verify_mode(name);
        verified(what, prompt, plain, options, rows);
      }
    }
  }

  // What partial steps read: blocks with every budget.
  struct Source {
    PartialKind kind = PartialKind::kAuto;
    std::optional<int64_t> budget{};
  };
  std::vector<Source> sources() const {
    std::vector<Source> all;
    for (const std::string& name : args_.partial_kv) {
      if (partial_kind(name) != PartialKind::kBlocks) {
        all.push_back({.kind = partial_kind(name)});
        continue;
      }
      for (const int64_t budget : args_.budgets) all.push_back({.kind = PartialKind::kBlocks, .budget = budget});
    }
    return all;
  }

  // One verification mode, with every source, interval, kind of pending tokens and tree size.
  void verified(const nlohmann::ordered_json& what, const std::vector<int32_t>& prompt, const GenerateResult& plain,
                GenerateOptions options, nlohmann::ordered_json* rows) {
    const bool partial = *options.verify->mode != VerifyMode::kFull;
    const bool lossless = *options.verify->mode == VerifyMode::kLossless;
    const std::vector<std::string> automatic = {"auto"};
    options.step_costs = {.partial_ms = args_.step_costs[0], .refresh_ms = args_.step_costs[1]};
    for (const Source& source : partial ? sources() : std::vector<Source>(1)) {
      for (const std::string& interval : partial ? args_.intervals : automatic) {
        for (const std::string& pending : lossless ? args_.pending : automatic) {
          options.verify->partial = source.kind;
          options.verify->budget = source.budget;
          options.verify->interval = interval == "auto" ? kAutoInterval : count_of("--interval", interval);
          options.pending.reset();
          if (pending == "chain") options.pending = {.width = 0};
          if (pending != "chain" && pending != "auto") options.pending = tree_of(pending);
          nlohmann::ordered_json row = what;
          row["draft"] = options.speculate ? spec_name(args_.draft) : "none";
          row["verify"] = verify_mode_name(*options.verify->mode);
          if (partial && source.budget) row["budget"] = *source.budget;
          if (partial) row["interval"] = interval;
          if (lossless) row["pending"] = pending;
          sized(row, prompt, plain, options, rows);
        }
      }
    }
  }

  // The same with every tree size.
  void sized(const nlohmann::ordered_json& what, const std::vector<int32_t>& prompt, const GenerateResult& plain,
             GenerateOptions options, nlohmann::ordered_json* rows) {
    for (const std::string& nodes : options.speculate ? args_.nodes : std::vector<std::string>{"auto"}) {
      options.tree_limits.reset();
      if (nodes != "auto") options.tree_limits = TreeLimits{.nodes = count_of("--nodes", nodes)};
      const GenerateResult result = generate(prompt, options);
      nlohmann::ordered_json row = what;
      if (options.speculate) row["tree"] = nodes == "auto" ? args_.tree : nodes;
      row["speedup"] = result.timings.decode_tokens_per_s / plain.timings.decode_tokens_per_s;
      row["same_answer"] = begins_alike(result, plain);
      row["compared_tokens"] = plain.token_ids.size();
      const double costed_ms = costed(result.speculation);
      if (costed_ms > 0)
        row["costed_tokens_per_s"] = 1e3 * static_cast<double>(result.timings.decode_tokens) / costed_ms;
      add(row, row_of(result), rows);
    }
  }

  // The tokens of plain decoding, as many as it took.
  static bool begins_alike(const GenerateResult& result, const GenerateResult& plain) {
    const size_t count = plain.token_ids.size();
    return result.token_ids.size() >= count &&
           std::equal(plain.token_ids.begin(), plain.token_ids.end(), result.token_ids.begin());
  }

  double costed(const Speculation& s) const {
    return static_cast<double>(s.of(StepMode::kPartial).steps) * args_.step_costs[0] +
           static_cast<double>(s.of(StepMode::kRefresh).steps) * args_.step_costs[1];
  }

  static void add(nlohmann::ordered_json row, const nlohmann::ordered_json& figures, nlohmann::ordered_json* rows) {
    row.update(figures);
    std::fprintf(stderr, "%s\n", row.dump().c_str());
    rows->push_back(std::move(row));
  }

  const Args args_;
  Engine engine_;
};

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  Args args;
  CLI::App app("What a draft gives on real texts", "speculation_bench");
  add_options(app, args);
  return run_program(app, argc, argv, [&] {
    headrace::apply_preset(app);
    return Bench(args).run();
  });
}
