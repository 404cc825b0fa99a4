// --weights-substitute: what layers in host memory have on the device for partial steps.
#include <optional>

#include "runtime/engine/run_setup.h"
#include "runtime/model/substitutes.h"

namespace headrace {
namespace {

constexpr const char* kFlag = "--weights-substitute";

VerifyOptions asked_verify(const RunContext& context, const GenerateOptions& run) {
  return run.verify.value_or(context.options.verify);
}

// Only a refresh makes the text that of the exact weights.
bool may_have_substitutes(const RunContext& context, const GenerateOptions& run) {
  const std::optional<VerifyMode> mode = asked_verify(context, run).mode;
  return context.weights_place != WeightsPlace::kDevice && (run.speculate || mode == VerifyMode::kLossless) &&
         run.score_next.empty() && run.forced.empty() && mode != VerifyMode::kFull && mode != VerifyMode::kApproximate;
}

// Of a run with these substitutes, or none; 0: it does not fit, or is unknown.
double speed_with(std::optional<WeightType> substitute, const RunContext& context, int64_t prompt_tokens,
                  const GenerateOptions& run) {
  RunContext with = context;
  with.substitute_is_chosen = true;
  with.substitute = substitute;
  RunSetup setup = resolve_options(with, prompt_tokens, run);
  const std::optional<SessionPlan> plan = try_as_asked(with, run, &setup);
  if (!plan || plan->memory.substitutes() != substitute.has_value()) return 0;
  return predicted_tokens_per_s(run_plan(with, setup, plan->memory), *with.rates).value_or(0);
}

}  // namespace

std::optional<WeightType> chosen_substitute(const RunContext& context, int64_t prompt_tokens,
                                            const GenerateOptions& run) {
  if (context.substitute_is_chosen) return context.substitute;
  const SubstituteOptions& asked = context.options.substitute;
  if (asked.type && asked_verify(context, run).mode == VerifyMode::kApproximate) {
    throw_error(ExitCode::kUsage, kFlag,
                str(weight_type_info(*asked.type).name,
                    " is not for --verify approximate: its text would depend on which layers the device has room for"),
                "Use --verify lossless, whose text is that of the exact weights, or leave --weights-substitute out.");
  }
  if (!may_have_substitutes(context, run)) return std::nullopt;
  if (!asked.automatic) return asked.type;
  if (!context.rates || !context.rates->known()) return std::nullopt;
  if (context.weights.possible_substitutes().empty()) return std::nullopt;
  double most = speed_with(std::nullopt, context, prompt_tokens, run);
  if (most == 0) return std::nullopt;  // what has no room without them has none with them
  std::optional<WeightType> best;
  for (const std::unique_ptr<Substitutes>& each : context.weights.possible_substitutes()) {
    const double speed = speed_with(each->type(), context, prompt_tokens, run);
    if (speed > most) most = speed, best = each->type();
  }
  return best;
}

void check_substitute(const EngineOptions& options, const Weights& weights, Backend backend, const std::string& model) {
  const std::optional<WeightType> type = options.substitute.type;
  if (!type || weights.possible_substitutes(*type) != nullptr) return;
  const char* const name = weight_type_info(*type).name;
  if (weights.has_experts())
    throw_error(ExitCode::kUsage, kFlag, str(name, ": ", model, " has experts, which have no substitutes"));
  if (backend == Backend::kCuda && weights.dtype() != DType::kBF16) {
    throw_error(ExitCode::kUsage, kFlag,
                str(name, " needs bf16 on a GPU, but --dtype is ", dtype_name(weights.dtype())),
                "Leave --dtype out, or use --device cpu.");
  }
  throw_error(ExitCode::kUsage, kFlag,
              str(name, " takes no less than the layers of ", model, " do: a substitute has fewer bits"),
              "Use a type of fewer bits, or leave --weights-substitute out.");
}

}  // namespace headrace
