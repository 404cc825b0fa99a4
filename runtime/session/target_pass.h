// Runs target passes over trees, from layers and attention to logits and samples, and commits accepted paths
// (docs/design.md, section 8). A pass whose enqueued work depends on a few sizes alone is replayed as a CUDA graph.
// Owns the graphs. Thread: the session's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/device/graph.h"
#include "runtime/session/attend.h"
#include "runtime/session/recur.h"
#include "runtime/speculation/accept.h"
#include "runtime/speculation/pending_tree.h"
#include "runtime/speculation/tree.h"

namespace headrace {

class TargetPass {
 public:
  // All references must outlive this. REQUIRES: prefill has run, and the buffers of passes are allocated.
  TargetPass(const SessionPlan& plan, const SessionBuffers& buffers, const PassKv& kv);

  // Samples the token after the prompt from the state of its last row.
  int32_t sample_prompt();
  // As in runtime/session/session.h.
  std::span<const int32_t> verify(const Tree& tree, StepMode mode);
  std::span<const int32_t> verify(const ProposedTree& proposed, StepMode mode, Tree* tree, Acceptance* acceptance);
  Ranked grow(const Tree& tree, int64_t first, int32_t followed);
  TreeInputs tree_inputs(StepMode mode) const;
  void commit(const Acceptance& acceptance);
  RowLogProbs log_probs(int64_t row) const;
  std::vector<float> logits(int64_t rows) const;

  int64_t replayed_steps() const { return replay_.launches() + growth_replay_.launches(); }
  int64_t steps_on_device() const { return steps_on_device_; }      // whose tree was made on the device
  int64_t commits_on_device() const { return commits_on_device_; }  // of those, the ones whose path was accepted there

 private:
  void start_pass(StepMode mode, int64_t nodes);
  void play_pass();
  void run_pass(const Pass& pass);
  void show_draft(int64_t layer, int64_t rows) const;
  void draw(const Pass& pass);  // logits and samples of `pass.rows` rows
  void rank(int64_t rows);
  bool scores() const { return options_.log_probs == LogProbs::kComputed && !scope_.grows; }
  void score(int64_t first, int64_t rows);  // the samples of these rows, and the likeliest tokens
  void accept_proposed();
  void show_query(int64_t row);
  void finish_step();  // waits for the results that were enqueued
  void read_result(int64_t nodes, Tree* tree, Acceptance* acceptance) const;
  bool accepted_on_device(const Acceptance& acceptance) const;

  void upload_step(const Tree& tree);
  void upload_growth(const Tree& tree, int64_t first);
  void set_input(int64_t row, int32_t token, int64_t position);
  uint64_t upload_bytes(int64_t rows) const;
  int64_t growth_rows(int64_t rows, int64_t first) const;
  int64_t prefix_segments() const;
  int64_t partial_segments() const;

  const SessionLayout& layout_;
  const SessionOptions& options_;
  const ModelConfig& config_;
  const Weights& weights_;
  Stream& compute_;
  const SessionBuffers& buffers_;
  const PassKv kv_;
  PassAttention attention_;
  PassRecurrence recurrence_;
  PassScope scope_;
  int64_t step_rows_ = 0;   // of the pass
  bool on_device_ = false;  // the step's tree was made on the device
  int64_t steps_on_device_ = 0, commits_on_device_ = 0;
  Replay replay_, growth_replay_;
};

}  // namespace headrace
