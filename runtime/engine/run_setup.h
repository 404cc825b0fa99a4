// Resolves one run's options and plan before anything is allocated. Internal to the engine. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/gpu_specs.h"
#include "cache/minimum_budgets.h"
#include "offload/device/device.h"
#include "runtime/draft/draft_model.h"
#include "runtime/engine/options.h"
#include "runtime/engine/run_plan.h"
#include "runtime/model/state_groups.h"
#include "runtime/model/weights.h"
#include "runtime/prefix/run.h"
#include "runtime/session/layout.h"
#include "runtime/session/sequence.h"
#include "runtime/speculation/pending_tree.h"
#include "runtime/speculation/verify_options.h"

namespace headrace {

// What all runs of an engine share.
struct RunContext {
  const EngineOptions& options;
  Device& device;
  Stream& compute;
  const ModelConfig& config;
  const Weights& weights;
  DraftModel* draft_model = nullptr;    // null: plain decoding
  std::string model{};                  // the model's path, for errors
  std::optional<MachineRates> rates{};  // by which --partial-kv auto compares kinds; none: the most exact that fits
  bool draft_is_usual = false;          // nobody named the draft: a run that does not fit with it is one without
  std::string draft_left_out{};         // the name of that draft, in such a run
  // kDevice: weights that are all on the device stay there.
  WeightsPlace weights_place = WeightsPlace::kDevice;
  // Of the layers in host memory, unless a run's is still to be chosen (chosen_substitute()).
  std::optional<WeightType> substitute{};
  bool substitute_is_chosen = false;
  bool saves = true;  // with a folder for saved prefixes: the run saves and reads some

  int64_t context_limit() const { return options.ctx_size > 0 ? options.ctx_size : config.max_positions; }
  // Whether some layers have a state that is of the last token alone.
  bool recurrent() const { return StateGroups(config).recurrent_layers() > 0; }
  bool needs_snapshots() const { return StateGroups(config).need_snapshots(); }
  // `wanted`: of a run instead of the engine's.
  bool prefills_in_int8(std::optional<PrefillType> wanted = std::nullopt) const {
    return headrace::prefills_in_int8(wanted.value_or(options.prefill),
                                      {.dtype = weights.dtype(), .quantised = weights.keeps_blocks()});
  }
};

struct RunSetup {
  int64_t max_tokens = 0;
  VerifyOptions verify;
  PendingTreeLimits pending{.width = 0};    // width 0: pending tokens are a chain, or there are none
  DraftModel* model = nullptr;              // null: plain decoding
  std::optional<TreeLimits> tree_limits{};  // of each step; none: by --tree
  bool saves = false;                       // with saved prefixes
  bool earlier_answers = false;             // the draft may look up in those of earlier runs
  bool windowed = false;                    // the draft has a window for less memory
  int64_t most_tree_nodes = kMaxTreeNodes;  // of a tree whose size is chosen by what steps cost
  std::unique_ptr<Draft> draft;             // set by finalize()
  SessionOptions session;                   // with the draft; the engine sets the saved prefix
  std::string memory_note{};                // what was left out because it did not fit; empty: nothing
  const char* verify_note = "";             // of --verify auto: why the run is full; empty: it is not, or was asked for

  DraftRun draft_run() const;
};

// Whether a refresh takes much longer than a partial step, because it streams what that does not.
inline bool refreshes_stream(const MemoryPlan& memory) { return memory.ring_slots > 0 || memory.substitutes(); }

// A run that can be carried out.
struct PreparedRun {
  RunSetup setup;  // the plan's layout points to its draft
  SessionPlan plan;
  std::unique_ptr<PrefixRun> prefix{};  // null: none is read or saved
  KeptState kept{};                     // of the run before

  // Passes over the full KV wait for the link, while partial steps do not, but for weights without substitutes.
  bool refreshes_stream() const { return headrace::refreshes_stream(plan.memory); }
};

// The limit of a run's tokens, prompt and answer: the context, or the limit of the runs that share kept rows.
int64_t most_run_tokens(const RunContext& context, const GenerateOptions& run);
int64_t most_answer_tokens(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run);

// Throw Error(kBadInput) if the vocabulary lacks an id, or if the prompt cannot be run (Engine::check_prompt).
void check_ids(const ModelConfig& config, const std::vector<int32_t>& ids);
void check_prompt(const RunContext& context, const std::vector<int32_t>& prompt, const GenerateOptions& run);

// The mode of --verify auto: lossless where a full run would stream, a lossless one fits and is not predicted to be
// slower; else full. The text is the same. Plans both.
struct AutoVerify {
  VerifyMode mode = VerifyMode::kFull;
  const char* note = "";  // RunSetup::verify_note
};
AutoVerify auto_verify(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run);

// The substitutes of a run whose layers may be in host memory: those that were asked for, or of all types and of none
// the ones with which the run is predicted to be fastest. None: it has none, as every run has that is not lossless, or
// whose speed is unknown. Throws Error(kUsage) if the run cannot have what was asked for.
std::optional<WeightType> chosen_substitute(const RunContext& context, int64_t prompt_tokens,
                                            const GenerateOptions& run);
// Throws Error(kUsage) if the model cannot have the substitutes that were asked for.
void check_substitute(const EngineOptions& options, const Weights& weights, Backend backend, const std::string& model);

// The setup of a run that does not stream; finalize() adapts it.
RunSetup resolve_options(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run);

// Makes the setup that of the kind of partial KV that is planned first.
void set_first_kind(const RunContext& context, const GenerateOptions& run, RunSetup* setup);

// Starts the run's draft and plans its session, which executes the plan: the first of the run's candidates that fits
// (run_candidates.cc). A run that streams verifies more pending tokens in a refresh and needs rows for them. So a
// candidate is first planned without these rows and, if it streams, again with them. If they do not fit, the run does
// without them. Where nothing fits at all, everything is tried again with what saves device memory, one thing after
// another: the embeddings in host memory, a window of the draft, the prompt's states in host memory, a lean prefill;
// then with fewer snapshots of recurrent states. With a draft that nobody named it is tried without partial steps,
// unless these are named, and then without the draft; but a draft whose states a saved prefix has stays. The setup says
// what was left out. None: nothing fits.
std::optional<SessionPlan> try_finalize(const RunContext& context, const GenerateOptions& run, RunSetup* setup);
// resolve_options() and try_finalize().
std::optional<RunPlan> try_run_plan(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run);
// Searches for what would fit. REQUIRES: nothing does. The setup has been resolved anew, or tried.
DoesNotFit refusal(const RunContext& context, const GenerateOptions& run, RunSetup* setup);
// try_finalize() with the draft and the partial KV as they are asked for: nothing is left out for less memory.
std::optional<SessionPlan> try_as_asked(const RunContext& context, const GenerateOptions& run, RunSetup* setup);
// The plan, or throws the refusal.
SessionPlan finalize(const RunContext& context, const GenerateOptions& run, RunSetup* setup);

// The setup of a run on the KV cache of an earlier run whose setup was `before`; the cache has the first `prompt.saved`
// rows. Starts the draft, but does not resume it.
RunSetup following_setup(const RunContext& context, const RunSetup& before, const PromptShape& prompt,
                         const GenerateOptions& run);

RunPlan run_plan(const RunContext& context, const RunSetup& setup, const MemoryPlan& memory);

}  // namespace headrace
