// The sizes of a session, that is, of a sequence and its executor; the layout of its buffers, and the plan of where its
// rows go. Allocates nothing. A run is planned once: the SessionPlan that is checked, printed and used for predictions
// is the object that is carried out. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/memory_plan.h"
#include "cache/window.h"
#include "offload/device/device.h"
#include "runtime/kv/recurrent_state.h"
#include "runtime/kv/state_snapshots.h"
#include "runtime/model/config.h"
#include "runtime/model/state_groups.h"
#include "runtime/model/weights.h"
#include "runtime/session/options.h"
#include "runtime/session/work.h"

namespace headrace {

// A prompt whose first `saved` rows exist in a saved prefix or in the KV cache of the previous run.
struct PromptShape {
  int64_t tokens = 0, saved = 0;
  int64_t computed() const { return tokens - saved; }
};

// Of the layers with a window, in a run of so many tokens; `rows`: theirs. No rows.layers: there are none. `all`: they
// keep all rows. Prefill has groups of at most `group` rows; 0: it builds whole layers.
WindowShape window_shape(const ModelConfig& config, const RowShape& rows, int64_t tokens, bool all = false,
                         int64_t group = 0);

// Of the layers without rows, with room for the rows of passes of `pass_rows`. `type`: of the weights.
RecurrentShape recurrent_shape(const ModelConfig& config, DType type, int64_t pass_rows = 0);

// Of the layers that need snapshots. `dtype`: of the weights.
SnapshotShape snapshot_shape(const ModelConfig& config, DType dtype, DType k_type, DType v_type);

class SessionLayout {
 public:
  // All references must outlive this, and so must the options' draft and prefix.
  SessionLayout(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
                const SessionOptions& options);

  Device& device() const { return device_; }
  Stream& compute() const { return compute_; }
  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  const SessionOptions& options() const { return options_; }
  const RowShape& shape() const { return shape_; }
  const StateGroups& groups() const { return groups_; }
  const WindowShape& window_shape() const { return windows_; }
  RecurrentShape recurrent_shape() const;  // of the layers without rows
  SnapshotShape snapshot_shape() const;    // of those that cannot be cut to fewer tokens
  // Whether a later run may resume from snapshots of states; at which positions this run's prefill takes them; and how
  // many there are at most.
  bool keeps_states() const {
    return groups_.need_snapshots() && (options_.most_prompt_tokens > 0 || options_.prefix != nullptr);
  }
  std::vector<int64_t> snapshots() const;
  int64_t most_snapshots() const;
  uint64_t snapshots_bytes() const;
  uint64_t hidden_row_bytes() const;  // of one row of prefill's residual stream
  // Whether prefill's residual stream is in host memory: options.host_states, where that saves device memory.
  bool streams_states() const;

  // Plans with the memory that the device has free now. The weights' memory must be reserved. Throws
  // Error(kDoesNotFit).
  MemoryPlan plan() const { return make_plan(plan_input()); }
  std::optional<MemoryPlan> try_plan() const { return headrace::try_plan(plan_input()); }
  PlanInput plan_input() const;

  bool partial_on() const { return options_.partial_on(); }
  // The type of what layers in host memory have on the device for partial steps. None: these steps stream them, too.
  std::optional<WeightType> substitute() const { return partial_on() ? options_.substitute : std::nullopt; }
  // The context length from which on steps may be partial; 0: never in this run.
  int64_t partial_from() const { return partial_on() ? options_.partial.shape.least_context() : 0; }
  int64_t pass_rows() const;  // of the largest pass
  int64_t drawn_rows() const;
  int64_t logit_rows() const;
  int64_t path_stride() const;
  int64_t prefill_group() const { return options_.prefill_rows(device_.backend()); }
  int64_t saved_rows() const { return options_.prefix != nullptr ? options_.prefix->rows() : options_.kept_rows; }
  bool scored() const { return options_.scores != nullptr; }
  PromptShape prompt() const { return {.tokens = options_.prompt_tokens, .saved = saved_rows()}; }
  int64_t computed_rows() const { return prompt().computed(); }
  // The prompt that the memory is planned for.
  PromptShape planned_prompt() const;

  // Prefill's groups begin at multiples of a group's rows beyond this. On a GPU a product in the computation's type
  // writes whole groups of 64 rows, so that all groups but the last have a multiple of 64 rows, wherever the rows that
  // were kept end.
  int64_t group_shift() const {
    return options_.cut_unit(device_.backend(), options_.draft != nullptr) == 1 ? 0 : options_.kept_rows % kPrefixTile;
  }

  // The number of prefill's segment tables: one for all layers of the KV cache, or one for each if rows may have been
  // kept; then one for all layers with a window.
  int64_t row_tables() const { return options_.most_prompt_tokens > 0 ? shape_.layers : 1; }
  int64_t segment_tables() const { return row_tables() + (groups_.window_layers() > 0 ? 1 : 0); }

  // Bytes of the quantised matrices that prefill has at a time in the weights' type: a layer's, or one if it is lean.
  // 0: it needs none dequantised.
  uint64_t matrices_bytes() const;

  int64_t top_tokens() const;        // ranked per row for log-probabilities; 0: these are not computed
  uint64_t log_probs_bytes() const;  // of a pass
  uint64_t ranked_bytes() const;
  uint64_t rules_bytes() const;       // of what the rules of a run need, on each side; 0: options.rules is off
  uint64_t int8_row_bytes() const;    // of a layer's rows in 8 bits, for each row of the prompt; 0: there are none
  uint64_t comparison_bytes() const;  // pinned, of scores that are compared; 0: they are not
  uint64_t result_bytes() const;      // including the tokens after it
  StepInputs carve_inputs(BumpAllocator& allocator) const;
  StepResult carve_result(BumpAllocator& allocator) const;
  // `allocator`: buffers of the whole run; `later`: buffers of passes alone, whose memory prefill uses before.
  StepWork carve_step(BumpAllocator& allocator, BumpAllocator& later) const;
  PrefillWork carve_prefill(const PromptShape& prompt, BumpAllocator& allocator) const;

 private:
  void plan_work(PlanInput* input) const;
  void add_weights(PlanInput* input) const;
  uint64_t partial_work_bytes() const;
  uint64_t partial_pinned_bytes() const;
  uint64_t pinned_work_bytes() const;
  uint64_t pointer_bytes() const;  // of a table of pointers to all layers' K and V
  uint64_t disk_free_bytes() const;
  int64_t padded(int64_t rows) const { return padded_rows(device_.backend(), rows); }

  Device& device_;
  Stream& compute_;
  const ModelConfig& config_;
  const Weights& weights_;
  const SessionOptions options_;
  const StateGroups groups_;
  const RowShape shape_;
  const WindowShape windows_;
};

struct SessionPlan {
  SessionLayout layout;
  MemoryPlan memory;
};

}  // namespace headrace
