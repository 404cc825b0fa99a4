// What a run does for less memory, or does without, where nothing fits otherwise. Internal to the engine. Plain values;
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/engine/run_setup.h"

namespace headrace {

// A plan that fits gives way to one that saves more memory if that is predicted to be so many times as fast.
constexpr double kWorthSaving = 1.03;

struct Savings {
  bool embedding = false;  // in host memory: costs next to nothing
  bool window = false;     // of the draft, which would attend to all rows: a few of its guesses are worse
  bool states = false;     // of the prompt, in host memory while prefill runs: the link has more to carry
  bool lean = false;       // prefill: matrices are converted for each group of rows

  bool takes_host_memory_beside(const Savings& less) const {
    return embedding != less.embedding || states != less.states;
  }
};

// Those that may make a run fit, from the least on, each with all before it and the cheapest first.
std::vector<Savings> savings_of(const RunContext& context, const RunSetup& setup);

// Whether the run's draft may have a window for less memory. The text of an approximate run depends on its draft.
bool draft_may_shrink(const RunSetup& setup);

// Fewer snapshots of recurrent states than the runs on one KV cache may have, the most first.
std::vector<int64_t> fewer_snapshots(const RunContext& context, const RunSetup& setup);

// The run without partial steps, where these may be left out: --verify auto chose them, or nobody named them or the
// draft.
std::optional<GenerateOptions> without_partial(const RunContext& context, const GenerateOptions& run,
                                               const RunSetup& setup);

// The context without its draft, where that may be left out: nobody named it, and the run's text does not depend on it,
// as an approximate one's does.
std::optional<RunContext> without_draft(const RunContext& context, const RunSetup& setup);

}  // namespace headrace
