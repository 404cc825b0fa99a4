// The rows of the KV cache that a run leaves to the next one, with its plan and its draft (GenerateOptions::keep).
// Internal to the engine. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/engine/output.h"
#include "runtime/engine/run_setup.h"
#include "runtime/session/session.h"

namespace headrace {

// The options that determine the rows' bits and the plan. A run with equal ones may use the rows of another.
struct KeptOptions {
  KeepRows keep = KeepRows::kNone;
  std::optional<KvMode> kv{};
  bool speculate = true;
  std::optional<VerifyOptions> verify{};
  std::optional<TreeLimits> tree_limits{};
  std::optional<PendingTreeLimits> pending{};
  bool log_probs = false;
  bool operator==(const KeptOptions&) const = default;
};

// Values alone: nothing of the run that made it outlives it here.
struct KeptRun {
  RunSetup setup;  // without what it points to: the draft, a saved prefix, scores
  MemoryPlan memory;
  KeptOptions options;
  std::vector<int32_t> ids;  // the tokens of the cache's rows
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<StateSnapshots> snapshots;  // null: all layers have rows
  std::unique_ptr<KeptDraft> draft;           // null: the run had none
};

// Takes the cache and the setup of a run that has ended. Null: there are too few rows, and nothing was taken.
std::unique_ptr<KeptRun> keep_run(const std::vector<int32_t>& prompt, const GenerateOptions& run, const Output& output,
                                  Session* session, RunSetup* setup);

// The number of the prompt's rows that a run with these options may take from `before`. 0: too few, or the run is
// longer than the plan of `before` allows.
int64_t usable_rows(const RunContext& context, const KeptRun& before, const std::vector<int32_t>& prompt,
                    const GenerateOptions& run);

// What a session takes of the run before it.
struct KeptState {
  std::unique_ptr<KvCache> cache;  // null: a fresh run
  std::unique_ptr<StateSnapshots> snapshots;
};

// Returns the plan of `before` for a run on its first `prompt.saved` rows. Fills the setup, with the draft resumed, and
// the state.
SessionPlan follow_run(const RunContext& context, std::unique_ptr<KeptRun> before, const PromptShape& prompt,
                       const GenerateOptions& run, RunSetup* setup, KeptState* state);

}  // namespace headrace
