// What one run is to be, settled before anything is made for it: what was asked for, what goes without saying, and, by
// what the planner makes of that, how many tokens may pend. Takes no memory of the device. Internal to the engine.
// Thread: one.
#pragma once

#include <cstdint>
#include <memory>

#include "offload/device/device.h"
#include "runtime/draft/draft_model.h"
#include "runtime/engine/options.h"
#include "runtime/engine/run_plan.h"
#include "runtime/model/config.h"
#include "runtime/model/weights.h"
#include "runtime/session/layout.h"
#include "runtime/speculation/pending_tree.h"
#include "runtime/speculation/verify_options.h"

namespace headrace {

// What an engine's runs have in common.
struct RunContext {
  const EngineOptions& options;
  Device& device;
  Stream& compute;
  const ModelConfig& config;
  const Weights& weights;
  DraftModel* draft_model = nullptr;  // null: plain decoding

  int64_t context_limit() const { return options.ctx_size > 0 ? options.ctx_size : config.max_positions; }
};

struct RunSetup {
  int64_t max_tokens = 0;
  VerifyOptions verify;
  PendingTreeLimits pending{.width = 0};  // no width: pending tokens are a chain, or there are none
  DraftModel* model = nullptr;            // null: plain decoding
  DraftRun draft_run;
  std::unique_ptr<Draft> draft;  // once it is settled
  SessionOptions session;        // with the draft; a saved prefix is the engine's to name
};

// The most tokens of a run, prompt and answer: the context, or what the runs that keep rows share.
int64_t most_run_tokens(const RunContext& context, const GenerateOptions& run);
int64_t most_answer_tokens(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run);

// As it would be if nothing streamed.
RunSetup resolve_options(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run);

// Starts the run's draft and plans its session. Passes that stream over the full KV judge more pending tokens, and the
// run needs the rows for them: where the tree of pending tokens depends on that, the planner is first asked for the run
// without these rows, and again with them if it streams (a run that streams without them streams with them). If memory
// has no room for them, the run does without. The plan that is returned is the one that the session carries out. Throws
// Error(kDoesNotFit).
SessionPlan finalize(const RunContext& context, const GenerateOptions& run, RunSetup* setup);

// The setup of a run on the KV cache that a run with that setup has left, whose rows are the saved ones of the prompt.
// Its draft is started, not resumed.
RunSetup following_setup(const RunContext& context, const RunSetup& before, const PromptShape& prompt,
                         const GenerateOptions& run);

RunPlan run_plan(const RunContext& context, const RunSetup& setup, const MemoryPlan& memory);

}  // namespace headrace
