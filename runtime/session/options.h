// The options of a sequence and its executor, which one plan joins. Plain values; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/memory_plan.h"
#include "kernels/sample/op.h"
#include "runtime/draft/draft.h"
#include "runtime/kv/partial_kv.h"
#include "runtime/kv/spill_options.h"
#include "runtime/kv/state_snapshots.h"
#include "runtime/model/config.h"
#include "runtime/prefix/run.h"
#include "runtime/session/log_probs.h"
#include "runtime/session/state_comparison.h"

namespace headrace {

// Rows whose logits are computed and sampled per call, unless more are ranked: one product group, since large trees and
// refreshes span several.
constexpr int64_t kDrawnRows = 64;

// Requests the log-probability of the token after each token of the prompt.
struct PromptScores {
  std::vector<int32_t> next;           // [prompt_tokens]: the tokens
  std::vector<float> log_probs;        // out: as many; NaN where the logits are not finite
  StateComparison* compare = nullptr;  // null: nothing is compared; outlives the run
};

struct SessionOptions {
  int64_t prompt_tokens = 0;
  // The longest prompt of the runs that share the KV cache and the plan; 0: this is the only run.
  int64_t most_prompt_tokens = 0;
  int64_t kept_rows = 0;  // first rows of the prompt that the previous run's KV cache has; then there is no `prefix`
  // Of a model with recurrent states or windows, if runs share the KV cache: the next run begins at multiples of this.
  int64_t snapshot_unit = kPrefixTile;
  // Of such a model: as many snapshots stay as fit (state_snapshots.h). Saved prefixes need all of them.
  int64_t most_snapshots = kAllSnapshots;
  int64_t context_tokens = 0;  // most tokens of the run
  int64_t pass_rows = 1;       // nodes of the largest tree, without a refresh's pending rows
  KvMode kv = KvMode::kAuto;
  DType k_type = DType::kBF16, v_type = DType::kBF16;
  SamplingSettings sampling{};
  RingOptions ring{};
  uint64_t host_piece_bytes = 256 * kMiB;  // the KV cache's host memory is pinned in pieces of this size
  SpillOptions spill{};                    // for rows that host memory cannot hold
  int64_t prefill_group = 0;               // rows of a prefill product; 0: the backend's
  bool lean_prefill = false;               // as MemoryPlan::lean_prefill
  bool prefill_int8 = false;               // prefill's products and attention in 8 bits
  bool host_states = false;  // a long prompt's states are in host memory, as MemoryPlan::host_states_bytes
  // kDevice: the weights are there; kAuto: as many layers as fit, beside what else is there.
  WeightsPlace weights = WeightsPlace::kDevice;
  bool host_embedding = false;           // the embeddings move to host memory before prefill, if they may
  bool all_window_rows = false;          // layers with a window keep all rows: for tests
  bool graphs = true;                    // replay steps as CUDA graphs where possible; false: for tests and benches
  LogProbs log_probs = LogProbs::kNone;  // of the samples of passes
  bool rules = false;                    // passes may have masks and penalties (node_rules.h)
  PenaltySettings penalties{};           // with `rules`
  int64_t grow_rows = 0;                 // most nodes that one call of grow() computes; 0: it is not called
  int64_t drawn_rows = kDrawnRows;       // more: for tests that read the logits of all rows
  PartialOptions partial{};              // off: every step reads the full KV
  // Of layers in host memory, for partial steps; one of Weights::possible_substitutes(). None: they have none.
  std::optional<WeightType> substitute{};
  int64_t most_pending = kMaxPending;  // tokens that partial steps may leave pending
  // With an int8 copy: stream remainders instead of rows. None: on a GPU only. Set by tests and benches.
  std::optional<bool> remainders{};
  PrefixRun* prefix = nullptr;     // saved prefixes to read and to save; outlives the run
  Draft* draft = nullptr;          // gets the target's states, and is part of the plan; outlives the run
  PromptScores* scores = nullptr;  // filled by prefill, which then computes every row; outlives the run

  bool compares() const { return scores != nullptr && scores->compare != nullptr; }
  bool partial_on() const { return partial.shape.serves(context_tokens); }  // else every step reads all rows
  int64_t prefill_rows(Backend backend) const;                              // of a prefill product
  // Rows that a later prompt may use end at multiples of this, so that the rows behind them have the bits of a fresh
  // run. Only CUDA's products in the computation's type depend on where their groups begin: those of prefill, unless it
  // is in 8 bits, and those of a draft that reads the prompt.
  int64_t cut_unit(Backend backend, bool drafts) const {
    return backend == Backend::kCpu || (prefill_int8 && !drafts) ? 1 : prefill_rows(backend);
  }
  // The same of a model with recurrent states, whose chunks begin at multiples of 64, or with windows.
  int64_t states_unit(Backend backend, bool drafts) const { return std::max(kPrefixTile, cut_unit(backend, drafts)); }
};

// Groups of prefill whose states are on the device where those of the whole prompt are not: one is computed, others
// arrive and leave.
constexpr int64_t kStateSlots = 4;

// Rows of a prefill product unless an option sets it (docs/design.md, section 6, rule 1).
constexpr int64_t kCpuPrefillGroup = 256, kCudaPrefillGroup = 2048;
inline int64_t SessionOptions::prefill_rows(Backend backend) const {
  return prefill_group > 0 ? prefill_group : backend == Backend::kCpu ? kCpuPrefillGroup : kCudaPrefillGroup;
}

// The number of last prompt rows whose queries select the blocks of the first partial KV: a single query predicts
// little of what later ones will need. They are in one prefill group of `group` rows. The number depends on the
// prompt's length alone, because the text of an approximate run depends on these rows; a run after a saved prefix
// computes all of them, too.
constexpr int64_t kScoringRows = 16;
constexpr int64_t prompt_scoring_rows(int64_t prompt_tokens, int64_t group) {
  return std::min(kScoringRows, (prompt_tokens - 1) % group + 1);
}

}  // namespace headrace
