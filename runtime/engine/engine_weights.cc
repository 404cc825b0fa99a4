// Where an engine's weights are.
#include <algorithm>
#include <optional>

#include "offload/device/trace.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/engine/savings.h"

namespace headrace {
namespace {

// Two layers and what never leaves.
uint64_t least_device_bytes(const Weights& weights) {
  uint64_t stays = whole_pages(weights.all_bytes()), largest = 0;
  for (int64_t i = 0; i < weights.layer_count(); ++i) {
    stays -= weights.layer_bytes(i);
    largest = std::max(largest, weights.layer_bytes(i));
  }
  return stays + 2 * largest;
}

}  // namespace

// Where both tiers are one memory, nothing is gained.
bool Engine::Impl::weights_may_leave() const {
  if (options.weights_place != WeightsPlace::kAuto) return options.weights_place == WeightsPlace::kHost;
  return device->backend() == Backend::kCuda || device->vram().limit_bytes() != device->host_mem().limit_bytes();
}

void Engine::Impl::reserve_weights() {
  const uint64_t free = device->vram().free_bytes();
  const bool all_in_host = options.weights_place == WeightsPlace::kHost;
  if (!weights_may_leave() || (!all_in_host && whole_pages(weights->all_bytes()) <= free)) {
    return weights->allocate(*device, {});
  }
  uint64_t least = least_device_bytes(*weights);
  if (options.host_embedding.value_or(device->backend() == Backend::kCuda)) least -= weights->movable_bytes();
  if (least <= free) return;
  throw_error(
      ExitCode::kDoesNotFit, "--vram",
      str("needs ", format_bytes(least), " for the weights that cannot be in host memory and a ring of two layers, ",
          format_bytes(free), " are free"),
      quantised_type(options.weights) ? "raise --vram, or use a smaller model"
                                      : "raise --vram, use a smaller model, or load it in fewer bits (--weights q4_k)");
}

// A draft's weights stay on the device, so they come first.
void Engine::Impl::use_first_draft() {
  const DraftOptions draft = options.draft;
  try {
    return use_draft(draft);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDoesNotFit || !weights_may_leave() || !weights->allocated()) throw;
  }
  weights->release();
  use_draft(draft);
}

// Whether rows stream beside weights that all stay, and the run is faster where some of these leave for what they make
// room for: a copy in place of blocks. Weights that are loaded are not loaded again for that, and rows that are kept
// are planned for a context that may never be used.
bool Engine::Impl::faster_without(const RunContext& stay, const RunContext& leave, int64_t prompt_tokens,
                                  const GenerateOptions& run) const {
  if (weights->loaded() || run.keep != KeepRows::kNone || !stay.rates || !stay.rates->known()) return false;
  const std::optional<RunPlan> all_there = try_run_plan(stay, prompt_tokens, run);
  if (!all_there || !all_there->memory.streams()) return false;
  const std::optional<RunPlan> some_left = try_run_plan(leave, prompt_tokens, run);
  if (!some_left || !some_left->memory.streams_weights()) return false;
  const std::optional<double> with_all = predicted_tokens_per_s(*all_there, *stay.rates);
  const std::optional<double> with_some = predicted_tokens_per_s(*some_left, *stay.rates);
  return with_all && with_some && *with_some > kWorthSaving * *with_all;
}

// Rows leave before layers: who wants them on the device does not want weights to leave in their place. Experts leave
// before rows.
std::vector<RunContext> Engine::Impl::contexts(int64_t prompt_tokens, const GenerateOptions& run) const {
  std::vector<RunContext> all;
  const bool all_there = weights->allocated() && weights->host_layers() == 0;
  const bool experts_first = weights_may_leave() && weights->has_experts();
  if ((all_there && !experts_first) || !weights_may_leave()) all.push_back(context());
  if (!weights_may_leave() || (all_there && !experts_first && run.kv.value_or(options.kv) == KvMode::kDevice))
    return all;
  all.push_back(context());
  all.back().weights_place = options.weights_place;
  if (all.size() == 2 && faster_without(all[0], all[1], prompt_tokens, run)) return {all[1], all[0]};
  return all;
}

DoesNotFit Engine::Impl::refusal(int64_t prompt_tokens, const GenerateOptions& run, PromptScores* scores) const {
  const auto lacks = [](const DoesNotFit& refused) {  // of the device's memory
    const uint64_t needed = refused.minimum().vram_bytes;
    return needed > 0 ? needed - std::min(needed, refused.input().vram_free) : UINT64_MAX;
  };
  std::optional<DoesNotFit> least;
  for (const RunContext& context : contexts(prompt_tokens, run)) {
    RunSetup setup = resolve_options(context, prompt_tokens, run);
    setup.session.scores = scores;
    const DoesNotFit refused = headrace::refusal(context, run, &setup);
    if (!least || lacks(refused) < lacks(*least)) least.emplace(refused);
  }
  return least.value();
}

// Layers that have left stay in host memory: a run that needs less of the device than the one before it has the
// placement of that one. Their substitutes come and go without them.
void Engine::Impl::place_weights(const SessionPlan& plan) {
  const MemoryPlan& memory = plan.memory;
  const std::optional<WeightType> substitute = memory.substitutes() ? plan.layout.substitute() : std::nullopt;
  const bool stay = weights->allocated() && weights->host_layers() == memory.host_weights_layers &&
                    weights->experts_alone() == memory.host_experts_alone;
  if (stay && weights->substitute() == substitute) return;
  const HostSpan span(device->trace(), "place weights");
  if (stay) return weights->set_substitute(*device, substitute);
  const WeightPlacement placement{.host_layers = memory.host_weights_layers,
                                  .experts_alone = memory.host_experts_alone,
                                  .host_embedding = memory.host_embedding_bytes > 0 || weights->embedding_in_host(),
                                  .substitute = substitute};
  weights->release();
  weights_stand = false;
  weights->allocate(*device, placement);
}

}  // namespace headrace
