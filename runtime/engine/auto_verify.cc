// --verify auto: which mode a run has.
#include <optional>

#include "runtime/engine/run_setup.h"

namespace headrace {
namespace {

struct Planned {
  RunPlan plan;
  bool streams = false;
};

// None: it does not fit as it is asked for.
std::optional<Planned> planned(VerifyMode mode, const RunContext& context, int64_t prompt_tokens,
                               const GenerateOptions& run) {
  GenerateOptions asked = run;
  asked.verify = run.verify.value_or(context.options.verify);
  asked.verify->mode = mode;
  RunSetup setup = resolve_options(context, prompt_tokens, asked);
  const std::optional<SessionPlan> plan = try_as_asked(context, asked, &setup);
  if (!plan) return std::nullopt;
  return Planned{.plan = run_plan(context, setup, plan->memory), .streams = plan->memory.ring_slots > 0};
}

bool predicted_slower(const RunContext& context, const RunPlan& lossless, const RunPlan& full) {
  if (!context.rates || !context.rates->known()) return false;
  const std::optional<double> with = predicted_tokens_per_s(lossless, *context.rates),
                              without = predicted_tokens_per_s(full, *context.rates);
  return with && without && *with < *without;
}

}  // namespace

AutoVerify auto_verify(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run) {
  if (!run.speculate) return {};
  const std::optional<Planned> full = planned(VerifyMode::kFull, context, prompt_tokens, run);
  if (!full) return {};  // a lossless run needs more memory
  if (!full->streams)
    return {.note = full->plan.memory.streams_weights() ? "no rows stream, and all steps read all weights"
                                                        : "nothing streams"};
  const std::optional<Planned> lossless = planned(VerifyMode::kLossless, context, prompt_tokens, run);
  if (!lossless) return {.note = "memory has no room for what partial steps read"};
  if (!lossless->plan.partial.on()) return {.note = "partial steps would read all of it"};
  if (predicted_slower(context, lossless->plan, full->plan))
    return {.note = "partial steps are predicted to be slower"};
  return {.mode = VerifyMode::kLossless};
}

}  // namespace headrace
