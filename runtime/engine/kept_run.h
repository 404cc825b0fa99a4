// The rows of the KV cache that a run leaves to the next one, with its plan and its draft (GenerateOptions::keep).
// Internal to the engine. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/engine/output.h"
#include "runtime/engine/run_setup.h"
#include "runtime/session/sequence.h"

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
  bool rules = false;
  bool operator==(const KeptOptions&) const = default;
};

// Values alone: nothing of the run that made it outlives it here.
struct KeptRun {
  RunSetup setup;  // without what it points to: the draft, a saved prefix, scores
  MemoryPlan memory;
  KeptOptions options;
  std::vector<int32_t> ids;  // the tokens of the cache's rows
  KeptState state;
  std::unique_ptr<KeptDraft> draft;  // null: the run had none
};

// Takes the state and the setup of a run that has ended. Null: there are too few rows, and nothing was taken. REQUIRES:
// its executor has stopped.
std::unique_ptr<KeptRun> keep_run(const std::vector<int32_t>& prompt, const GenerateOptions& run, const Output& output,
                                  Sequence* sequence, PreparedRun* prepared);

// The number of the prompt's rows that a run with these options may take from `before`. 0: too few, or the run is
// longer than the plan of `before` allows.
int64_t usable_rows(const RunContext& context, const KeptRun& before, const std::vector<int32_t>& prompt,
                    const GenerateOptions& run);

// A run on the first `prompt.saved` rows of `before`, by the plan of that run; its draft is resumed.
PreparedRun follow_run(const RunContext& context, std::unique_ptr<KeptRun> before, const PromptShape& prompt,
                       const GenerateOptions& run);

}  // namespace headrace
