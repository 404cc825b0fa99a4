// Target passes over trees, and what is committed of them (docs/design.md, section 8): layers, attention, logits,
// samples. A pass is replayed as a CUDA graph where what it enqueues depends on a few sizes alone. Owns the graphs.
// Thread: the session's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/device/graph.h"
#include "runtime/session/attend.h"
#include "runtime/speculation/accept.h"
#include "runtime/speculation/pending_tree.h"
#include "runtime/speculation/tree.h"

namespace headrace {

class TargetPass {
 public:
  // All that is referred to outlives this. REQUIRES: prefill has run, and the pass's buffers are allocated.
  TargetPass(const SessionPlan& plan, const SessionBuffers& buffers, const KvRooms& kv);

  // The token after the prompt, from the state of its last row.
  int32_t sample_prompt();
  // As in runtime/session/session.h.
  std::span<const int32_t> verify(const Tree& tree, StepMode mode);
  std::span<const int32_t> verify(const ProposedTree& proposed, StepMode mode, Tree* tree, Acceptance* acceptance);
  Ranked grow(const Tree& tree, int64_t first);
  TreeInputs tree_inputs(StepMode mode) const;
  void commit(const Acceptance& acceptance);
  std::vector<float> logits(int64_t rows) const;

  int64_t replayed_steps() const { return replay_.launches() + growth_replay_.launches(); }
  int64_t steps_on_device() const { return steps_on_device_; }      // whose tree the host had no hand in
  int64_t commits_on_device() const { return commits_on_device_; }  // nor in what was accepted of it

 private:
  void start_pass(StepMode mode, int64_t nodes);
  void play_pass();
  void run_pass(const Pass& pass);
  void draw(const Pass& pass);  // logits and samples of `pass.rows` rows
  void rank(int64_t rows);
  void accept_proposed();
  void finish_step();
  void read_result(int64_t nodes, Tree* tree, Acceptance* acceptance) const;
  bool accepted_on_device(const Acceptance& acceptance) const;

  void upload_step(const Tree& tree);
  void upload_growth(const Tree& tree, int64_t first);
  void set_input(int64_t row, int32_t token, int64_t position);
  uint64_t upload_bytes(int64_t rows) const;
  int64_t growth_rows(int64_t rows, int64_t first) const;
  int64_t prefix_segments() const;

  const SessionLayout& layout_;
  const SessionOptions& options_;
  const ModelConfig& config_;
  const Weights& weights_;
  Stream& compute_;
  const SessionBuffers& buffers_;
  const KvRooms kv_;
  PassAttention attention_;
  PassScope scope_;
  int64_t step_rows_ = 0;   // of the pass
  bool on_device_ = false;  // the step's tree came from the device
  bool grows_ = false;      // the pass's own K and V go to the pass rows that the inputs say; else from the first on
  int64_t steps_on_device_ = 0, commits_on_device_ = 0;
  Replay replay_, growth_replay_;
};

}  // namespace headrace
