// Carries out prefill and the target's passes over a sequence (docs/design.md, section 3), from tokens to samples, and
// commits accepted paths. Prefill runs once (prefill.h); then each step verifies a tree and commits its accepted path
// (docs/design.md, section 8). A pass whose enqueued work depends on a few sizes alone is replayed as a CUDA graph.
//
// Owns what has no position: the buffers of a step, the ring through which rows arrive, and the graphs. Borrows the
// weights and the plan's compute stream, and with it what the kernels keep on the stream. All that it remembers between
// two steps of a text is in the Sequence (sequence.h). The graphs hold addresses of that one sequence, and the ring
// reads ahead of it; only these two tie an executor to one sequence. Weights in host memory arrive through a ring of
// their own; a pass that waits for it is not replayed.
//
// Lives as long as a run, or until stop(). Thread: one at a time, except for `interrupt`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "offload/device/graph.h"
#include "offload/device/link_queue.h"
#include "runtime/base/progress.h"
#include "runtime/model/weight_streamer.h"
#include "runtime/session/attend.h"
#include "runtime/session/draw.h"
#include "runtime/session/expert_slabs.h"
#include "runtime/session/recur.h"
#include "runtime/speculation/accept.h"
#include "runtime/speculation/pending_tree.h"
#include "runtime/speculation/tree.h"

namespace headrace {

class Executor {
 public:
  // Allocates nothing. The weights' memory must be reserved; prefill() is the first to read them. All references must
  // outlive this; the stream is idle again once this is destroyed.
  // `masks`: of the tokens that may follow, on options.rules; may be null.
  Executor(const SessionPlan& plan, Sequence& sequence, TokenMasks* masks = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Allocates the sequence, and runs the whole prompt through layer 0, then layer 1, … (docs/design.md, section 7).
  // Returns the token after the prompt, or nothing if `interrupt` was set or a saved prefix is damaged(). REQUIRES:
  // prompt_tokens ids, each in the vocabulary.
  std::optional<int32_t> prefill(std::span<const int32_t> ids, Progress* progress, const std::atomic<bool>* interrupt);

  // Runs one target pass over the tree and returns the target's sample after each node, valid until the next call. With
  // kPartial the tree's positions follow the pending rows, and the pass reads the partial KV. Otherwise they follow the
  // rows of the full KV; the tree then starts with the pending tokens, if any, and the pass verifies them again. Their
  // old rows are dropped by commit().
  std::span<const int32_t> verify(const Tree& tree, StepMode mode = StepMode::kFull);
  // A partial step that computes nodes [first, size) of a tree that follows the rows of the full KV; earlier calls have
  // computed the other nodes. Returns the ranked tokens after each new node, valid until the next call. `followed`: a
  // computed node that most of the new ones follow; -1: none. It saves time, and changes nothing else. REQUIRES:
  // nothing is pending; at most grow_rows new nodes.
  Ranked grow(const Tree& tree, int64_t first, int32_t followed = -1);
  // Where a draft writes its tree for a step of this mode. REQUIRES: the mode is kPartial, or nothing is pending.
  // Not if ruled(): then the host must know a tree before its pass.
  TreeInputs tree_inputs(StepMode mode) const;
  // Verifies the tree that the draft wrote there and accepts a path on the device. Waits once, for one copy that holds
  // the tree and the accepted path.
  std::span<const int32_t> verify(const ProposedTree& proposed, StepMode mode, Tree* tree, Acceptance* acceptance);
  bool ruled() const { return rules_.on(); }  // the run has masks or penalties
  // The log-probabilities of a row of the last pass that verified tokens (after prefill: row 0); empty unless
  // options.log_probs is kComputed.
  RowLogProbs log_probs(int64_t row) const;
  // Appends the accepted path of the last verified tree to the KV cache; after a partial step, to the pending rows.
  void commit(const Acceptance& acceptance);
  // Waits for the device and stops reading the sequence, which may then be released; nothing but the destructor is
  // called afterwards.
  void stop();

  // The logits of the last pass (after prefill: one row), for tests and benches. [rows, vocab]
  std::vector<float> logits(int64_t rows) const;
  ExpertUse expert_use();  // of steps so far; waits for the device
  int64_t replayed_steps() const { return replay_.launches() + growth_replay_.launches(); }
  int64_t steps_on_device() const { return steps_on_device_; }      // whose tree was made on the device
  int64_t commits_on_device() const { return commits_on_device_; }  // of those, the ones whose path was accepted there

 private:
  int32_t sample_prompt();
  void make_row_streamer();
  void start_pass(StepMode mode, int64_t nodes);
  Pass decode_pass() const;
  void play_pass();
  void run_pass(const Pass& pass);
  bool streams_weights() const { return layers_.streams() && !multiplies_substitutes(); }
  bool multiplies_substitutes() const { return scope_.mode == StepMode::kPartial && plan_.memory.substitutes(); }
  void begin_link_pass();
  void show_draft(int64_t layer, int64_t rows) const;
  bool scores() const { return options_.log_probs == LogProbs::kComputed && !scope_.grows; }
  void accept_proposed();
  void show_query(int64_t row);
  void finish_step();  // waits for the results that were enqueued
  void read_result(int64_t nodes, Tree* tree, Acceptance* acceptance) const;
  bool accepted_on_device(const Acceptance& acceptance) const;
  int64_t growth_rows(int64_t rows, int64_t first) const;
  int64_t prefix_segments() const;
  int64_t partial_segments() const;
  int64_t window_slots_end() const;

  const SessionPlan& plan_;
  const SessionLayout& layout_;
  const SessionOptions& options_;
  const ModelConfig& config_;
  const Weights& weights_;
  Stream& compute_;
  Sequence& sequence_;
  SessionBuffers buffers_;
  LinkQueue link_;
  WeightStreamer layers_;
  std::optional<ExpertSlabs> slabs_;      // once prefill has ended, where experts are in host memory
  std::unique_ptr<KvStreamer> streamer_;  // null if all rows are resident
  const PassAttention attention_;
  const PassRecurrence recurrence_;
  NodeRules rules_;
  const PassDraw draw_;
  PassScope scope_;
  int64_t step_rows_ = 0;   // of the pass
  bool on_device_ = false;  // the step's tree was made on the device
  int64_t steps_on_device_ = 0, commits_on_device_ = 0;
  Replay replay_, growth_replay_;
};

}  // namespace headrace
