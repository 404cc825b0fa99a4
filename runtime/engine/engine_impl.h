// The engine's state and the steps of a run. Internal to the engine. Thread: as Engine.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/gpu_specs.h"
#include "cache/minimum_budgets.h"
#include "offload/device/dry_run_device.h"
#include "offload/host/clock.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kept_run.h"
#include "runtime/engine/run_setup.h"
#include "runtime/engine/thinking_budget.h"
#include "runtime/grammar/token_masks.h"
#include "runtime/model/weights.h"
#include "runtime/prefix/run.h"
#include "runtime/prefix/store.h"
#include "runtime/text/jinja/template.h"

namespace headrace {

// A template does not know how much a model is to think. Throws Error(code).
[[noreturn]] void refuse_effort(ExitCode code, const std::string& what, const std::string& effort);

struct Engine::Impl {
  EngineOptions options;
  std::unique_ptr<Device> device;
  DryRunCard limits;  // of the device, before anything of ours is in its memory
  std::unique_ptr<Checkpoint> checkpoint;
  ModelConfig config;  // the checkpoint's, with --rope-* in place
  std::optional<Tokenizer> tokenizer;
  std::optional<jinja::Template> chat;  // none: no template
  TemplateTraits chat_traits{};
  std::string chat_name = "none";  // for the report
  std::optional<ThinkingMarks> thinking;
  std::optional<Weights> weights;
  std::unique_ptr<DraftModel> draft_model;  // null: plain decoding
  bool draft_is_usual = false;              // as in RunContext
  std::vector<int32_t> turn_ends;           // of the chat template
  std::vector<int32_t> end_ids;
  std::unique_ptr<TokenTrie> token_trie;  // null: no run has had a grammar yet
  // Shared by all runs, so that what the kernels keep on a stream (checked products, their workspace) is made once.
  std::unique_ptr<Stream> compute;
  std::unique_ptr<PrefixStore> prefixes;  // null: none are kept
  PrefixKey prefix_identity{};
  OtherPrefill other_prefill{};
  std::string prefix_note;     // the last one that was reported
  bool weights_stand = false;  // the loaded weights are those of prefix_identity
  double load_ms = 0;
  std::unique_ptr<KeptRun> kept;      // null: nothing is kept
  std::optional<MachineRates> rates;  // none: nothing is predicted

  explicit Impl(const EngineOptions& o) : options(o) {}
  void open();
  // Takes the memory of all weights on the device where it has room for them; else a run's plan places them.
  void reserve_weights();
  void use_first_draft();
  void use_draft(const DraftOptions& draft);
  // By the plan of a run. They have to be loaded anew if they were elsewhere.
  void place_weights(const SessionPlan& plan);
  bool load_weights(Progress* progress, const std::atomic<bool>* interrupt);
  void check_weights();
  void choose_chat();
  Thinking thinking_after(const std::vector<int32_t>& prompt) const;
  ThinkingBudget thinking_budget(const std::vector<int32_t>& prompt, int64_t tokens) const;
  // Which tokens may follow in an answer to the prompt; null: all.
  std::unique_ptr<TokenMasks> answer_masks(const std::vector<int32_t>& prompt, const GenerateOptions& run);
  // Those that were measured, or of the card's data sheet.
  std::optional<MachineRates> usual_rates() const {
    if (rates && rates->known()) return rates;
    const std::optional<GpuSpec> card = gpu_named(device->name());
    return card ? std::optional(card->rates()) : std::nullopt;
  }
  RunContext context() const {
    return {options,       *device,       *compute, config, *weights, draft_model.get(), checkpoint->path(),
            usual_rates(), draft_is_usual};
  }
  // The ways in which a run may have its weights, the better first: on the device, or some in host memory. One at
  // least.
  std::vector<RunContext> contexts(int64_t prompt_tokens, const GenerateOptions& run) const;
  bool faster_without(const RunContext& stay, const RunContext& leave, int64_t prompt_tokens,
                      const GenerateOptions& run) const;
  bool weights_may_leave() const;
  void open_prefixes();
  std::unique_ptr<PrefixRun> find_prefix(const std::vector<int32_t>& prompt, const RunSetup& setup);
  // None: it does not fit.
  std::optional<PreparedRun> plan_with_prefix(const RunContext& context, const std::vector<int32_t>& prompt,
                                              const GenerateOptions& run, RunSetup setup, PrefixUse* use);
  void note_no_room(const PrefixRun& prefix, bool drafts, PrefixUse* use) const;
  // An attempt at the run. None: it does not fit, and nothing was done. `scores` outlives the attempt.
  std::optional<PreparedRun> prepare(const std::vector<int32_t>& prompt, const GenerateOptions& run,
                                     PromptScores* scores, GenerateResult* result);
  void check_run(const std::vector<int32_t>& prompt, const GenerateOptions& run) const;
  void report(GenerateResult* result);  // what is the engine's
  DoesNotFit refusal(const std::vector<int32_t>& prompt, const GenerateOptions& run) const;
  // With its weights where it takes the least of the device.
  DoesNotFit refusal(int64_t prompt_tokens, const GenerateOptions& run, PromptScores* scores) const;
};

}  // namespace headrace
