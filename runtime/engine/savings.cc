#include "runtime/engine/savings.h"

#include "runtime/kv/state_snapshots.h"

namespace headrace {

bool draft_may_shrink(const RunSetup& setup) {
  return setup.model != nullptr && setup.verify.mode != VerifyMode::kApproximate &&
         setup.model->may_be_windowed(setup.draft_run());
}

std::vector<Savings> savings_of(const RunContext& context, const RunSetup& setup) {
  const bool cuda = context.device.backend() == Backend::kCuda;
  const EngineOptions& options = context.options;
  const bool movable = cuda && context.weights.movable_bytes() > 0;
  // Where weights stream, embeddings that leave cost next to nothing and make room for a layer. Experts may leave
  // without being asked for, also none of them.
  const bool experts = context.weights.has_experts() && context.weights_place == WeightsPlace::kAuto;
  const bool leave = movable && context.weights_place != WeightsPlace::kDevice && !experts;
  std::vector<Savings> all = {{.embedding = options.host_embedding.value_or(leave),
                               .window = setup.windowed,
                               .states = options.host_states.value_or(false)}};
  const auto add = [&](bool Savings::*one) {
    all.push_back(all.back());
    all.back().*one = true;
  };
  if (!options.host_embedding && movable && !leave) add(&Savings::embedding);
  // What a saved prefix has of a draft's rows is found before the run is planned.
  if (setup.session.prefix == nullptr && draft_may_shrink(setup)) add(&Savings::window);
  if (!options.host_states && cuda) add(&Savings::states);
  if (cuda && context.weights.keeps_blocks()) add(&Savings::lean);  // else prefill converts nothing
  return all;
}

std::optional<RunContext> without_draft(const RunContext& context, const RunSetup& setup) {
  if (!context.draft_is_usual || setup.model == nullptr) return std::nullopt;
  if (setup.verify.mode == VerifyMode::kApproximate) return std::nullopt;
  RunContext plain = context;
  plain.draft_left_out = setup.model->name();
  plain.draft_model = nullptr;
  return plain;
}

std::optional<GenerateOptions> without_partial(const RunContext& context, const GenerateOptions& run,
                                               const RunSetup& setup) {
  const VerifyOptions& asked = run.verify ? *run.verify : context.options.verify;
  if (context.options.substitute.type && setup.session.substitute) return std::nullopt;
  if (asked.names_mode() || asked.names_partial() || setup.verify.mode == VerifyMode::kFull) return std::nullopt;
  if (!asked.mode && (!context.draft_is_usual || setup.model == nullptr)) return std::nullopt;
  GenerateOptions full = run;
  full.verify = VerifyOptions{.mode = VerifyMode::kFull};
  return full;
}

std::vector<int64_t> fewer_snapshots(const RunContext& context, const RunSetup& setup) {
  const SessionOptions& session = setup.session;
  if (!context.needs_snapshots() || session.most_prompt_tokens == 0 || session.prefix != nullptr) return {};
  const int64_t all = most_snapshots(session.most_prompt_tokens);
  std::vector<int64_t> fewer;
  for (const int64_t most : {(all + kLeastSnapshots) / 2, kLeastSnapshots}) {
    if (most < (fewer.empty() ? all : fewer.back())) fewer.push_back(most);
  }
  return fewer;
}

}  // namespace headrace
