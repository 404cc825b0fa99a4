#include "runtime/commands/plan_settings.h"

#include <algorithm>
#include <utility>

#include "runtime/model/card_rope.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"

namespace headrace {
namespace {

constexpr int64_t kMaxOfAShape = int64_t{64} << 20;  // in tokens: terabytes even with the smallest

const char* weights_name(const PlanOptions& options, bool quantised, DType dtype) {
  if (options.shape_weights != nullptr) return options.shape_weights->name;
  if (options.engine.weights == WeightPolicy::kQ4K) return "q4_k";
  return quantised ? "quantised" : dtype_name(dtype);
}

// None: the model cannot be run so.
std::optional<PlanSetting> setting_of(const PlanOptions& options, const DryRunCard& card,
                                      const std::optional<MachineRates>& rates, const std::string& flags) {
  PlanSetting setting{.flags = flags};
  std::optional<RunPlan> run;
  try {
    const std::unique_ptr<Engine> engine = open_plan_engine(options, card, rates);
    run = engine->try_plan(engine->context_limit() - options.output_tokens, {.max_tokens = options.output_tokens});
  } catch (const Error& error) {  // of weights that are larger than the device
    if (error.code() != ExitCode::kDoesNotFit) return std::nullopt;
  }
  setting.fits = run.has_value();
  if (!run) return setting;
  setting.verify = verify_mode_name(run->verify);
  if (!rates || !rates->known()) return setting;
  const Prediction predicted = predict(*run, *rates);
  if (predicted.prefill.known) setting.first_token_ms = predicted.prefill.ms();
  setting.tokens_per_s = predicted.tokens_per_s;
  setting.at_least = predicted.at_least;
  return setting;
}

}  // namespace

std::unique_ptr<Engine> open_plan_engine(const PlanOptions& options, const DryRunCard& card,
                                         const std::optional<MachineRates>& rates) {
  EngineOptions engine = options.engine;
  engine.want_tokenizer = false;
  engine.rates_of = [rates](const Device&) { return rates; };
  std::unique_ptr<Checkpoint> checkpoint;
  if (!options.shape.empty()) {
    if (engine.ctx_size > kMaxOfAShape) {
      throw_error(ExitCode::kUsage, "--ctx-size",
                  str(engine.ctx_size, " tokens are more than the ", kMaxOfAShape, " that are planned for a shape"));
    }
    Shape shape = find_shape(options.shape);  // has no trained context length, so it accepts any
    shape.config.max_positions = std::max(shape.config.max_positions, engine.ctx_size);
    checkpoint = make_random_checkpoint(shape.name, shape.config, 0, options.shape_weights);
  }
  return std::make_unique<Engine>(engine, std::move(checkpoint), open_dry_run_device(card));
}

// Of a shape any context is planned, so that what the model was made for is only said.
void note_context(const PlanOptions& options, const Engine& engine, PlanReport* report) {
  const ModelConfig own = options.shape.empty() ? engine.own_config() : find_shape(options.shape).config;
  report->own_context_tokens = own.max_positions;
  report->exact_rows = own.exact_rows;
  const RopeOverrides& given = options.engine.rope;
  const std::optional<RopeOverrides> card = card_rope(own);
  if (card && !given.scaling && given.factor == 0) report->card_rope = rope_flags_text(*card);
  const std::vector<WeightTypeUse> types = engine.weight_types();
  report->quantised = std::any_of(types.begin(), types.end(),
                                  [](const WeightTypeUse& use) { return use.quantised() || use.quantised_by_load(); });
}

// The run beside others with smaller weights, a smaller cache or both, and with every pass over all of it.
std::vector<PlanSetting> compare_settings(const PlanOptions& options, const DryRunCard& card,
                                          const PlanReport& report) {
  std::vector<PlanSetting> settings;
  const bool quantised = report.quantised;
  const DType own_k = options.engine.cache_type_k.value_or(report.dtype),
              own_v = options.engine.cache_type_v.value_or(report.dtype);
  const auto add = [&](const PlanOptions& asked, const std::string& flags) {
    std::optional<PlanSetting> setting = setting_of(asked, card, report.rates, flags);
    if (!setting) return;
    const DType k = asked.engine.cache_type_k.value_or(own_k), v = asked.engine.cache_type_v.value_or(own_v);
    setting->weights = weights_name(asked, quantised, report.dtype);
    setting->cache = k == v ? dtype_name(k) : str(dtype_name(k), ", ", dtype_name(v));
    settings.push_back(*std::move(setting));
  };
  add(options, "");
  const bool lossless = report.run && report.run->verify == VerifyMode::kLossless;
  PlanOptions other = options;
  if (lossless && !options.engine.verify.names_partial()) {
    other.engine.verify.mode = VerifyMode::kFull;
    add(other, "--verify full");
  } else if (options.engine.verify.mode == VerifyMode::kFull) {
    other.engine.verify.mode = VerifyMode::kAuto;
    add(other, "--verify auto");
    if (settings.back().verify == settings.front().verify) settings.pop_back();
  }
  PlanOptions small = options, low = options;
  low.engine.cache_type_k = low.engine.cache_type_v = DType::kInt8;
  const bool shape = !options.shape.empty(), caches = (!low_bit(own_k) || !low_bit(own_v)) && !report.exact_rows;
  const std::string cache = "-ctk int8 -ctv int8", weights = shape ? "--weights q4_k_m" : "--weights q4_k";
  if (shape) small.shape_weights = find_weight_mixture("q4_k_m");
  if (!shape) small.engine.weights = WeightPolicy::kQ4K;
  if (!quantised) add(small, weights);
  if (caches) add(low, cache);
  if (quantised || !caches) return settings;
  small.engine.cache_type_k = small.engine.cache_type_v = DType::kInt8;
  add(small, weights + " " + cache);
  return settings;
}

std::vector<PlanSetting> settings_beside(const Engine& engine, const EngineOptions& options, int64_t prompt_tokens,
                                         int64_t output_tokens) {
  PlanOptions plan{.engine = options, .output_tokens = output_tokens, .card = engine.card()};
  plan.engine.ctx_size = std::min(prompt_tokens + output_tokens, engine.context_limit());
  if (plan.engine.ctx_size <= output_tokens) return {};
  try {
    return make_plan_report(plan).settings;
  } catch (const Error&) {  // nothing that the run itself needs
    return {};
  }
}

}  // namespace headrace
