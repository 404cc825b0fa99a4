// One run over one context: the KV cache, the buffers of a step, and the order in which they are used (docs/design.md,
// section 3). Prefill runs once; then each step verifies a tree and commits its accepted path. Executes the plan that
// it is given, and frees everything when it is destroyed, except a cache that was taken. Prefill is in prefill.h,
// target passes are in target_pass.h. Thread: one at a time, except for `interrupt`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/progress.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/kv/kv_streamer.h"
#include "runtime/kv/partial_rows.h"
#include "runtime/kv/state_snapshots.h"
#include "runtime/session/buffers.h"
#include "runtime/session/target_pass.h"
#include "runtime/speculation/accept.h"
#include "runtime/speculation/tree.h"

namespace headrace {

// Statistics of a session so far.
struct SessionStats {
  double host_memory_ms = 0;  // time to pin the KV cache's host memory
  double host_wait_ms = 0;    // time that prefill waited for it
  SpillStats spill;
  int64_t replayed_steps = 0;     // replayed as CUDA graphs
  int64_t steps_on_device = 0;    // steps whose tree was made on the device
  int64_t commits_on_device = 0;  // of those, steps whose path was also accepted there
};

class Session {
 public:
  // Allocates nothing. The weights' memory must be reserved; prefill() is the first to read them. The session borrows
  // the plan's compute stream, and with it what the kernels keep on the stream; the stream is idle again once the
  // session is destroyed.
  //
  // `cache`: the cache of an earlier session with the same memory plan; its first options.kept_rows rows are those of
  // this prompt. Null: a new one is made. `snapshots`: of the recurrent states, if there are some; one is behind these
  // rows.
  explicit Session(SessionPlan plan, std::unique_ptr<KvCache> cache = nullptr,
                   std::unique_ptr<StateSnapshots> snapshots = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Creates the file of the disk tier (its errors are thrown here) and starts to pin the KV cache's host memory, beside
  // other work that takes `beside_bytes` of host memory. Does nothing if the budget has no room for both; prefill()
  // then does it.
  void begin_host_memory(uint64_t beside_bytes);

  // Runs the whole prompt through layer 0, then layer 1, … (docs/design.md, section 7). Returns the token after the
  // prompt, or nothing if `interrupt` was set or a saved prefix is damaged(). REQUIRES: prompt_tokens ids, each in the
  // vocabulary.
  std::optional<int32_t> prefill(std::span<const int32_t> ids, Progress* progress, const std::atomic<bool>* interrupt);

  // Runs one target pass over the tree and returns the target's sample after each node, valid until the next call. With
  // kPartial the tree's positions follow the pending rows, and the pass reads the partial KV. Otherwise they follow the
  // rows of the full KV; the tree then starts with the pending tokens, if any, and the pass verifies them again. Their
  // old rows are dropped by commit().
  std::span<const int32_t> verify(const Tree& tree, StepMode mode = StepMode::kFull) {
    return pass_->verify(tree, mode);
  }
  // A partial step that computes nodes [first, size) of a tree that follows the rows of the full KV; earlier calls have
  // computed the other nodes. Returns the ranked tokens after each new node, valid until the next call. `followed`: a
  // computed node that most of the new ones follow; -1: none. It saves time, and changes nothing else. REQUIRES:
  // nothing is pending; at most grow_rows new nodes.
  Ranked grow(const Tree& tree, int64_t first, int32_t followed = -1) { return pass_->grow(tree, first, followed); }
  // Where a draft writes its tree for a step of this mode. REQUIRES: the mode is kPartial, or nothing is pending.
  TreeInputs tree_inputs(StepMode mode) const { return pass_->tree_inputs(mode); }
  // Verifies the tree that the draft wrote there and accepts a path on the device. Waits once, for one copy that holds
  // the tree and the accepted path.
  std::span<const int32_t> verify(const ProposedTree& proposed, StepMode mode, Tree* tree, Acceptance* acceptance) {
    return pass_->verify(proposed, mode, tree, acceptance);
  }
  // The log-probabilities of a row of the last pass that verified tokens (after prefill: row 0); empty unless
  // options.log_probs is kComputed.
  RowLogProbs log_probs(int64_t row) const { return pass_->log_probs(row); }
  // Appends the accepted path of the last verified tree to the KV cache; after a partial step, to the pending rows.
  void commit(const Acceptance& acceptance) { pass_->commit(acceptance); }

  // Releases the cache for the next session; call nothing else afterwards. Null: prefill() was not called.
  std::unique_ptr<KvCache> take_cache();
  // Null: no layer has a recurrent state, or none is kept.
  const StateSnapshots* snapshots() const { return snapshots_.get(); }
  std::unique_ptr<StateSnapshots> take_snapshots() { return std::move(snapshots_); }

  const MemoryPlan& plan() const { return plan_.memory; }
  const SessionLayout& layout() const { return plan_.layout; }
  int64_t rows() const { return cache_ ? cache_->rows() : 0; }  // of the full KV
  int64_t pending_rows() const { return cache_ ? cache_->pending_rows() : 0; }
  bool partial_ready() const { return partial_ && partial_->initialised(); }
  SessionStats stats() const;
  SpillFile* disk() const { return cache_ ? cache_->backing().disk() : nullptr; }  // null: no disk tier
  // The logits of the last pass (after prefill: one row), for tests and benches. [rows, vocab]
  std::vector<float> logits(int64_t rows) const { return pass_->logits(rows); }

 private:
  std::unique_ptr<KvBacking> make_backing() const;
  void allocate();

  const SessionPlan plan_;
  const bool follows_;                  // the cache is an earlier session's
  const SpillStats spill_before_;       // the statistics of that session
  std::unique_ptr<KvBacking> backing_;  // until the cache takes it
  std::unique_ptr<SessionBuffers> buffers_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvStreamer> streamer_;       // null if all rows are resident
  std::unique_ptr<RecurrentState> recurrent_;  // null if all layers have rows
  std::unique_ptr<StateSnapshots> snapshots_;
  std::unique_ptr<PartialRows> partial_;  // null if every step reads the full KV
  std::unique_ptr<TargetPass> pass_;      // from prefill() on
};

}  // namespace headrace
