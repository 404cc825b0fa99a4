// The split of weights, experts and rows that a plan chooses, beside those that can be made by hand: each is a plan
// with explicit options, whose weights are placed by hand as well. None that fits is predicted to be much faster.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/gpu_specs.h"
#include "offload/device/dry_run_device.h"
#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/run_setup.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "runtime/model/substitutes.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

constexpr double kWithin = 0.95;  // of the fastest split by hand
constexpr int64_t kAnswer = 256;

struct SweptShape {
  const char *name, *weights;  // "": bf16
  int64_t context;
  uint64_t vram_bytes;
};

// What flags say of a run, and what they do not: which weights leave, and savings that a run has where nothing fits
// otherwise. The number of blocks is the usual one, because the share of tokens that others overturn is not known.
struct Split {
  int64_t layers = 0;  // the last ones, whose weights are in host memory
  bool experts_alone = false;
  int64_t slots = 0;  // of a layer's slab of experts; 0: as many as fit
  std::optional<WeightType> substitute{};
  KvMode kv = KvMode::kAuto;
  VerifyOptions verify{};
  bool host_embedding = false, host_states = false;

  std::string text() const {
    constexpr const char* kPlaces[] = {"auto", "device", "host"};
    return str(layers, " layers", experts_alone ? str("' experts in host memory, slots ", slots) : " in host memory",
               substitute ? str(", --weights-substitute ", weight_type_info(*substitute).name) : "", ", --kv ",
               kPlaces[static_cast<size_t>(kv)], " --verify ", verify_mode_name(*verify.mode), " --partial-kv ",
               partial_kind_name(verify.partial), " --refresh-interval ", verify.interval,
               host_embedding ? ", embeddings" : "", host_states ? ", states" : "");
  }
};

// The ways to verify: all of it, exact rows on the device beside substitutes, and kinds of partial KV.
std::vector<VerifyOptions> ways_to_verify(const Split& split) {
  std::vector<VerifyOptions> ways = {{.mode = VerifyMode::kFull}};
  if (split.substitute) ways.clear();  // they are for lossless runs
  if (split.substitute && split.kv == KvMode::kDevice) ways.push_back({.mode = VerifyMode::kLossless});
  for (const PartialKind kind : {PartialKind::kInt8, PartialKind::kInt4, PartialKind::kBlocks}) {
    for (const int64_t interval : {kAutoInterval, int64_t{48}})
      ways.push_back({.mode = VerifyMode::kLossless, .partial = kind, .interval = interval});
  }
  return ways;
}

class PlanSweep : public ::testing::TestWithParam<SweptShape> {
 protected:
  std::unique_ptr<Checkpoint> model() const {
    Shape shape = find_shape(GetParam().name);
    shape.config.max_positions = std::max(shape.config.max_positions, GetParam().context);
    return make_random_checkpoint(shape.name, shape.config, 0,
                                  *GetParam().weights == '\0' ? nullptr : find_weight_mixture(GetParam().weights));
  }
  std::unique_ptr<Device> card() const {
    return open_dry_run_device({.name = "NVIDIA GeForce RTX 4090",
                                .vram_bytes = GetParam().vram_bytes,
                                .host_bytes = 64 * kGiB,
                                .taken_bytes = kDryRunContextBytes});
  }
  EngineOptions usual() const {
    EngineOptions options;
    options.want_tokenizer = false;
    options.ctx_size = GetParam().context;
    options.verify.mode = VerifyMode::kAuto;
    options.draft.type = SpecType::kAuto;
    options.rates_of = [this](const Device&) { return std::optional(rates_); };
    return options;
  }
  int64_t prompt() const { return GetParam().context - kAnswer; }
  double speed_of(const RunPlan& plan) const { return predicted_tokens_per_s(plan, rates_).value_or(0); }

  void sweep();
  void sweep_placed(Split split);
  void try_split(const Split& split);

  const MachineRates rates_ = find_gpu("rtx4090").rates();
  const std::unique_ptr<Checkpoint> checkpoint_ = model();
  const std::unique_ptr<Device> device_ = card();
  const std::unique_ptr<Stream> compute_ = device_->make_stream("compute", StreamRole::kCompute);
  Weights weights_ = Weights::place(*checkpoint_, Backend::kCuda, {checkpoint_->natural_dtype(), WeightPolicy::kKeep});
  std::unique_ptr<DraftModel> draft_;  // the model's own, as in the run; null: it has none
  int fit_ = 0;                        // splits
  double best_ = 0;                    // tokens/s
  std::string best_split_;
};

void PlanSweep::try_split(const Split& split) {
  EngineOptions options = usual();
  options.kv = split.kv;
  options.verify = split.verify;
  options.substitute = {.automatic = false, .type = split.substitute};
  options.ring.expert_slots = split.slots;
  options.host_embedding = split.host_embedding;
  options.host_states = split.host_states;
  const RunContext context{.options = options,
                           .device = *device_,
                           .compute = *compute_,
                           .config = checkpoint_->config(),
                           .weights = weights_,
                           .draft_model = draft_.get(),
                           .rates = rates_,
                           .weights_place = split.layers > 0 ? WeightsPlace::kAuto : WeightsPlace::kDevice};
  const GenerateOptions run{.max_tokens = kAnswer};
  RunSetup setup = resolve_options(context, prompt(), run);
  const std::optional<SessionPlan> plan = try_as_asked(context, run, &setup);
  if (!plan || plan->memory.host_weights_layers != split.layers) return;
  ++fit_;
  const double speed = speed_of(run_plan(context, setup, plan->memory));
  if (speed > best_) best_ = speed, best_split_ = split.text();
}

// With the weights where the split has them.
void PlanSweep::sweep_placed(Split split) {
  weights_.release();
  try {
    weights_.allocate(
        *device_,
        {.host_layers = split.layers, .experts_alone = split.experts_alone, .host_embedding = split.host_embedding});
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
    return;
  }
  std::vector<std::optional<WeightType>> substitutes = {std::nullopt};
  if (split.layers > 0) {
    for (const auto& each : weights_.possible_substitutes()) substitutes.emplace_back(each->type());
  }
  for (const std::optional<WeightType> substitute : substitutes) {
    for (const KvMode kv : {KvMode::kAuto, KvMode::kDevice, KvMode::kHost}) {
      split.substitute = substitute;
      split.kv = kv;
      for (const VerifyOptions& verify : ways_to_verify(split)) {
        split.verify = verify;
        for (const int64_t slots : {0, 64}) {
          split.slots = slots;
          if (slots == 0 || split.experts_alone) try_split(split);
        }
      }
    }
  }
}

void PlanSweep::sweep() {
  const SpecType type = chosen_type({.type = SpecType::kAuto}, checkpoint_->config(), GetParam().name);
  draft_ = open_draft({.type = type}, *device_, checkpoint_->config(), weights_);
  for (int64_t layers = 0; layers <= weights_.layer_count(); ++layers) {
    if (layers == 1) continue;  // a ring is two
    const bool few = layers <= 8 && !weights_.has_experts() && !testing::kSanitized;
    if (!few && layers % 8 != 0 && layers != weights_.layer_count()) continue;
    for (const bool alone : {false, true}) {
      if (alone ? !weights_.has_experts() || layers == 0 : weights_.has_experts() && layers % 16 != 0) continue;
      for (const int saved : {0, 1, 2, 3})
        sweep_placed({.layers = layers,
                      .experts_alone = alone,
                      .host_embedding = (saved & 1) != 0,
                      .host_states = (saved & 2) != 0});
    }
  }
}

TEST_P(PlanSweep, NoSplitByHandIsMuchFaster) {
  const Engine engine(usual(), model(), card());
  const std::optional<RunPlan> plan = engine.try_plan(prompt(), {.max_tokens = kAnswer});
  ASSERT_TRUE(plan);
  const double chosen = speed_of(*plan);
  sweep();
  EXPECT_GT(fit_, 50);
  EXPECT_GE(chosen, kWithin * best_) << best_split_ << "\nThe plan has\n" << plan->memory.to_string();
  if (testing::kSanitized) return;  // its sweep is coarse
  EXPECT_LT(chosen, best_ / kWithin) << "the sweep misses what the plan has:\n" << plan->memory.to_string();
  RecordProperty("tokens_per_s", str(chosen, " chosen, ", best_, " the best of ", fit_, " by hand: ", best_split_));
}
std::string swept_name(const ::testing::TestParamInfo<SweptShape>& given) {
  std::string name = given.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}
constexpr SweptShape k27bOverfull{"qwen3.6-27b", "q4_k_m", 262144, 22 * kGiB};  // fits with blocks and all layers
INSTANTIATE_TEST_SUITE_P(Shapes, PlanSweep,
                         ::testing::Values(SweptShape{"llama-3.1-8b", "", 16384, 8 * kGiB},
                                           SweptShape{"qwen3.6-35b-a3b", "q4_k_m", 16384, 14 * kGiB}, k27bOverfull,
                                           SweptShape{"gemma-4-31b", "q4_k_m", 131072, 22 * kGiB}),
                         swept_name);

// Layers stay for rows that are kept: their context may never be used.
class PlanOfKeptRows : public PlanSweep {};
TEST_P(PlanOfKeptRows, KeepsTheLayersOnTheDevice) {
  const Engine engine(usual(), model(), card());
  const std::optional<RunPlan> once = engine.try_plan(prompt(), {.max_tokens = kAnswer});
  const std::optional<RunPlan> kept = engine.try_plan(prompt(), {.max_tokens = kAnswer, .keep = KeepRows::kPrompt});
  ASSERT_TRUE(once && kept);
  EXPECT_GT(once->memory.host_weights_layers, 0);
  EXPECT_EQ(kept->memory.host_weights_layers, 0);
}
INSTANTIATE_TEST_SUITE_P(Shapes, PlanOfKeptRows, ::testing::Values(k27bOverfull), swept_name);

}  // namespace
}  // namespace headrace
