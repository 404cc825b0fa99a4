// How much of everything a session of these options has, where in its buffers each thing lies, and the plan of where
// its rows go. Nothing is allocated here. A run is planned once: the SessionPlan that was checked, printed and
// predicted is the object that Session carries out. Thread: one.
#pragma once

#include <cstdint>

#include "cache/memory_plan.h"
#include "offload/device/device.h"
#include "runtime/model/config.h"
#include "runtime/model/weights.h"
#include "runtime/session/options.h"
#include "runtime/session/work.h"

namespace headrace {

class SessionLayout {
 public:
  // What is referred to outlives this, as do the options' draft and prefix.
  SessionLayout(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
                const SessionOptions& options);

  Device& device() const { return device_; }
  Stream& compute() const { return compute_; }
  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  const SessionOptions& options() const { return options_; }
  const RowShape& shape() const { return shape_; }
  uint64_t hidden_row_bytes() const;  // of one row of the residual stream

  // By what the device has free now. The weights' memory must be reserved. Throws Error(kDoesNotFit).
  MemoryPlan plan() const { return make_plan(plan_input()); }
  PlanInput plan_input() const;

  bool partial_on() const { return options_.partial_on(); }
  // From how many tokens on there may be partial steps; 0: never in this run.
  int64_t partial_from() const { return partial_on() ? options_.partial.shape.least_context() : 0; }
  int64_t pass_rows() const;  // the largest pass
  int64_t drawn_rows() const;
  int64_t logit_rows() const;
  int64_t path_stride() const;
  int64_t prefill_group() const { return options_.prefill_rows(device_.backend()); }
  int64_t saved_rows() const { return options_.prefix != nullptr ? options_.prefix->rows() : 0; }
  int64_t computed_rows() const { return options_.prompt_tokens - saved_rows(); }  // of the prompt

  // Of a layer's matrices that are kept in blocks, where prefill needs them in the weights' type.
  uint64_t unpacked_layer_bytes() const;

  uint64_t ranked_bytes() const;
  uint64_t result_bytes() const;  // with the tokens behind it
  StepInputs carve_inputs(BumpAllocator& allocator) const;
  StepResult carve_result(BumpAllocator& allocator) const;
  // `allocator`: what lasts for the run; `later`: what only passes need, and prefill has the room of.
  StepWork carve_step(BumpAllocator& allocator, BumpAllocator& later) const;
  PrefillWork carve_prefill(BumpAllocator& allocator) const;

 private:
  void plan_work(PlanInput* input) const;
  uint64_t pinned_work_bytes() const;
  uint64_t pointer_bytes() const;  // of a table of all layers' K and V
  uint64_t disk_free_bytes() const;
  int64_t padded(int64_t rows) const;

  Device& device_;
  Stream& compute_;
  const ModelConfig& config_;
  const Weights& weights_;
  const SessionOptions options_;
  const RowShape shape_;
};

struct SessionPlan {
  SessionLayout layout;
  MemoryPlan memory;
};

// Asks the planner once. Throws Error(kDoesNotFit).
SessionPlan plan_session(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
                         const SessionOptions& options);

}  // namespace headrace
