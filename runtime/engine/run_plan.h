// The plan of a run: its memory, and its predicted times on a machine whose rates are known (docs/design.md, section
// 10). Plain values, which the engine executes. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/cost.h"
#include "cache/draft_cost.h"
#include "cache/memory_plan.h"
#include "runtime/draft/window.h"
#include "runtime/model/config.h"
#include "runtime/model/weights.h"
#include "runtime/speculation/verify_options.h"

namespace headrace {

struct RunPlan {
  int64_t prompt_tokens = 0, context_tokens = 0;
  VerifyMode verify = VerifyMode::kFull;
  int64_t interval = kAutoInterval;
  PartialShape partial{};    // off: every step reads the full KV
  int64_t pass_rows = 1;     // the largest tree
  bool tunes_trees = false;  // --tree auto: a step's tree may be smaller
  int64_t grow_rows = 0;     // of a step that grows the tree of pending tokens; 0: there is no such tree
  // Tokens that partial steps may leave pending.
  int64_t most_pending = kMaxPending;
  std::string draft{};       // "draft-eagle3"; empty: none
  int64_t draft_levels = 0;  // of its trees
  DraftPass draft_pass{};
  DraftWindow draft_window{};
  uint64_t weights_bytes = 0, draft_weights_bytes = 0;  // on the device, without substitutes
  uint64_t table_bytes = 0;                             // in host memory: what tokens add to layers (token_inputs.h)
  std::vector<WeightTypeUse> weight_types{};            // of the model's weights
  const char* prefill_type = "";                        // as in GenerateResult
  ModelSizes sizes{};
  std::optional<WeightType> substitute{};  // of the layers in host memory; none: they have none, or none is there
  ModelSizes partial_sizes{};              // with them, of partial steps
  std::string memory_note{};               // what was left out because it did not fit; empty: nothing
  const char* verify_note = "";            // of --verify auto: why the run is full; empty: it is not, or was asked for
  bool recurrent() const { return sizes.recurrent.layers > 0; }
  MemoryPlan memory{};
  uint64_t host_bytes() const { return memory.host_total_bytes + whole_pages(table_bytes); }
};

ModelSizes model_sizes(const ModelConfig& config, const Weights& weights, const RowShape& rows);
// The same where the last layers are substitutes.
ModelSizes substituted_sizes(ModelSizes sizes, const Weights& weights, WeightType substitute, int64_t layers);
// Of the model's own MTP block, which sees `rows` rows. REQUIRES: there is one.
DraftPass mtp_pass(const ModelConfig& config, const Weights& weights, int64_t rows);

// The expected yield of a lossless run's refreshes. An estimate: it assumes the share of pending tokens that refreshes
// rejected in other runs, and the number of draft tokens that steps accepted there.
struct RefreshEstimate {
  double rejected_share = 0;  // that share
  double tau = 0;             // draft tokens that a partial step accepts
  int64_t pending = 0;        // tokens that a refresh verifies, with --refresh-interval auto
  double tokens = 0;          // tokens that it confirms, its own included
  double tokens_per_s = 0;
};

// Times of a run that is half through with its output.
struct Prediction {
  PassCost prefill, full;
  PassCost partial, refresh;  // only if has_partial
  bool has_partial = false;
  std::optional<RefreshEstimate> estimate{};
  double draft_ms = 0;  // time to propose a step's tree
  // Of decoding. None: in an approximate run, and where a disk of unknown rate decides.
  std::optional<double> tokens_per_s{};
  bool at_least = false;  // nobody has measured how often this draft is right: without its guesses

  bool known() const { return prefill.known && full.known && partial.known && refresh.known; }
  const PassCost& of(StepMode mode) const {
    return mode == StepMode::kFull ? full : mode == StepMode::kPartial ? partial : refresh;
  }
};
// REQUIRES: rates.known().
Prediction predict(const RunPlan& plan, const MachineRates& rates);

// Of a lossless or full run, to compare kinds of partial KV and these with none: a draft whose success nobody has
// measured is taken to have none. None: depends on a disk of unknown rate. REQUIRES: rates.known().
std::optional<double> predicted_tokens_per_s(const RunPlan& plan, const MachineRates& rates);

}  // namespace headrace
