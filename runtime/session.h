// One run over one context: the KV cache, the buffers of a step and the order in which they are used (DESIGN section
// 3): prefill once, then verify a tree and commit what was right of it, again and again. Planned and allocated before
// the first token; gives everything back when destroyed. Thread: one at a time, but for `interrupt`. prefill() is in
// prefill.cc, verify(), grow() and commit() are in verify.cc, attention is in attend.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "offload/graph.h"
#include "offload/pinned_later.h"
#include "runtime/accept.h"
#include "runtime/kv_cache.h"
#include "runtime/kv_streamer.h"
#include "runtime/model/forward.h"
#include "runtime/partial_kv.h"
#include "runtime/pending_tree.h"
#include "runtime/progress.h"
#include "runtime/session_layout.h"
#include "runtime/session_options.h"
#include "runtime/tree.h"

namespace headrace {

class Session {
 public:
  // Plans, and allocates nothing: throws Error(kDoesNotFit). The weights' memory must be reserved by now; they are read
  // from prefill() on. `compute` is lent by whoever runs one session after another, with what the kernels keep on it;
  // it is idle again when the session has gone.
  Session(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
          const SessionOptions& options);
  ~Session();

  // Makes the file of what lives on disk, whose errors come out here, and begins to take the KV cache's host memory,
  // while other work goes on that takes `beside_bytes` of host memory itself; not where the budget has no room for
  // both. prefill() does what has not been begun; errors come out of it. The destructor waits.
  void begin_host_memory(uint64_t beside_bytes);

  // All chunks of the prompt through layer 0, then layer 1, … (DESIGN section 7). Returns the token after the prompt,
  // or nothing if `interrupt` was set on the way, or a saved prefix is damaged(). REQUIRES: prompt_tokens ids, each in
  // the vocabulary.
  std::optional<int32_t> prefill(std::span<const int32_t> ids, Progress* progress, const std::atomic<bool>* interrupt);

  // One target pass over the tree; returns the target's sample after each node, valid until the next call. kPartial:
  // the tree stands behind the pending rows, and sees the partial KV. Else it stands behind the full KV's rows, begins
  // with the pending tokens, if there are any, and judges them again; their rows are forgotten when it is committed.
  std::span<const int32_t> verify(const Tree& tree, StepMode mode = StepMode::kFull);
  // A partial step that computes nodes [first, size) of a tree behind the full KV's rows, whose other nodes earlier
  // calls have computed. What is ranked after the new nodes is valid until the next call. REQUIRES: nothing is pending;
  // grow_rows of them at most.
  Ranked grow(const Tree& tree, int64_t first);
  // Where a draft may put its tree for a step of this mode, which nothing is pending before but in a partial one…
  TreeInputs tree_inputs(StepMode mode) const;
  // …and verify() of the tree that it has put there, accepted on the device. One wait, for one copy of all that came of
  // it: the tree as the draft had it, and which of it is right.
  std::span<const int32_t> verify(const ProposedTree& proposed, StepMode mode, Tree* tree, Acceptance* acceptance);
  // Appends the accepted path of the tree just verified to the KV cache; after a partial step, to the pending rows.
  void commit(const Acceptance& acceptance);

  int64_t rows() const { return cache_ ? cache_->rows() : 0; }       // of the full KV
  int64_t computed_rows() const { return layout_.computed_rows(); }  // of the prompt
  int64_t pending_rows() const { return cache_ ? cache_->pending_rows() : 0; }
  // From how many tokens on there may be partial steps; 0: never in this run.
  int64_t partial_from() const { return layout_.partial_on() ? options_.partial.shape.least_context() : 0; }
  bool partial_ready() const { return partial_ && partial_->initialised(); }
  const MemoryPlan& plan() const { return plan_; }
  // What taking the KV cache's host memory took, and how long prefill has waited for it.
  double host_memory_ms() const { return cache_ ? cache_->host_memory().ms() : 0; }
  SpillFile* disk() const { return cache_ ? cache_->disk() : nullptr; }  // from prefill() on; null: nothing is on one
  SpillStats spill_stats() const { return disk() ? disk()->stats() : SpillStats(); }
  double host_wait_ms() const { return cache_ ? cache_->host_memory().waited_ms() : 0; }
  // The logits of the last pass (after prefill: one row), for tests and benches. [rows, vocab]
  std::vector<float> logits(int64_t rows);
  int64_t replayed_steps() const { return replay_.launches() + growth_replay_.launches(); }
  int64_t steps_on_device() const { return steps_on_device_; }      // whose tree the host had no hand in
  int64_t commits_on_device() const { return commits_on_device_; }  // nor in what was accepted of it

 private:
  void take_host_memory();
  void make_spill_file();
  void allocate();
  void allocate_passes();  // once prefill's memory has gone
  Pass make_pass(const LayerWork& work, const int32_t* positions, int64_t rows, ProductPath path);
  void upload_rope_table();

  void upload_prompt(std::span<const int32_t> ids, PrefillWork* work, const PinnedBuffer& staging);
  void embed_prompt(const PrefillWork& work);
  bool prefill_layers(const PrefillWork& work, Progress* progress, const std::atomic<bool>* interrupt);
  bool begin_prefix();
  bool prefill_draft(std::span<const int32_t> ids, Progress* progress, const std::atomic<bool>* interrupt);
  void prefill_group_rows(const PrefillWork& work, int64_t layer, int64_t first, int64_t rows, const Event& layer_left);

  void start_pass(StepMode mode, int64_t nodes);
  void play_pass();
  void accept_proposed();
  void bring_result(int64_t nodes, Tree* tree, Acceptance* acceptance);
  bool accepted_on_device(const Acceptance& acceptance) const;
  void upload_step(const Tree& tree);
  void upload_growth(const Tree& tree, int64_t first);
  void set_input(int64_t row, int32_t token, int64_t position);
  uint64_t upload_bytes(int64_t rows) const;
  void rank(int64_t rows);
  int64_t growth_rows(int64_t rows, int64_t first) const;
  int64_t prefix_segments() const;
  void run_pass(const Pass& pass);
  void attend(const Pass& pass, int64_t layer);
  void attend_full(const PrefixAttentionParams& params, const Pass& pass, int64_t layer);
  void attend_partial(const PrefixAttentionParams& params, int64_t layer);
  void attend_tail(const Pass& pass, int64_t layer);
  ScoringQueries scoring_queries(const LayerWork& work, int64_t rows, int64_t wanted) const;
  void draw(const Pass& pass);  // logits and samples of `pass.rows` rows
  void bring_samples(int64_t rows);
  void finish_step();

  Device& device_;
  Stream& compute_;
  const ModelConfig& config_;
  const Weights& weights_;
  const SessionLayout layout_;
  const SessionOptions& options_;  // the layout's
  const RowShape& shape_;
  MemoryPlan plan_;
  PinnedLater host_memory_;  // until the cache has them
  std::unique_ptr<SpillFile> spill_file_;
  DeviceBuffer step_memory_, pass_memory_;
  PinnedBuffer host_inputs_, host_results_, host_ranked_;
  StepInputs host_;
  StepResult host_result_;
  StepWork step_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvStreamer> streamer_;      // none where all is resident
  std::unique_ptr<PartialKv> partial_;        // none where the run never outgrows its budget
  StepMode mode_ = StepMode::kFull;           // of the step
  int64_t step_rows_ = 0, judged_again_ = 0;  // of the pass; of them, pending tokens
  int64_t deepest_position_ = 0;
  bool on_device_ = false;  // the step's tree came from the device
  int64_t steps_on_device_ = 0, commits_on_device_ = 0;
  bool grows_ = false;  // the pass's own K and V go to the pass rows that the inputs say; else from the first on
  Replay replay_, growth_replay_;
};

}  // namespace headrace
