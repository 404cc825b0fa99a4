// One run over one context: the KV cache, the buffers of a step and the order in which they are used (docs/design.md,
// section 3): prefill once, then verify a tree and commit what was right of it, again and again. Carries out the plan
// that it is given; everything is freed when it is destroyed. Prefill is in prefill.h, passes are in target_pass.h.
// Thread: one at a time, but for `interrupt`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/progress.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/kv/kv_streamer.h"
#include "runtime/kv/partial_kv.h"
#include "runtime/session/buffers.h"
#include "runtime/session/target_pass.h"
#include "runtime/speculation/accept.h"
#include "runtime/speculation/tree.h"

namespace headrace {

// What a session has done so far.
struct SessionStats {
  double host_memory_ms = 0;  // pinning the KV cache's host memory
  double host_wait_ms = 0;    // that prefill waited for it
  SpillStats spill;
  int64_t replayed_steps = 0;     // as CUDA graphs
  int64_t steps_on_device = 0;    // whose tree never was on the host
  int64_t commits_on_device = 0;  // nor what was accepted of it
};

class Session {
 public:
  // Allocates nothing. The weights' memory must be reserved by now; they are read from prefill() on. The plan's compute
  // stream is lent by whoever runs one session after another, with what the kernels keep on it; it is idle again when
  // the session has been destroyed.
  explicit Session(SessionPlan plan) : plan_(std::move(plan)) {}
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Creates the file of what lives on disk, whose errors are thrown here, and begins to pin the KV cache's host memory
  // while other work goes on that takes `beside_bytes` of host memory itself. Does nothing where the budget has no room
  // for both: prefill() then does it.
  void begin_host_memory(uint64_t beside_bytes);

  // All chunks of the prompt through layer 0, then layer 1, … (docs/design.md, section 7). Returns the token after the
  // prompt, or nothing if `interrupt` was set on the way, or a saved prefix is damaged(). REQUIRES: prompt_tokens ids,
  // each in the vocabulary.
  std::optional<int32_t> prefill(std::span<const int32_t> ids, Progress* progress, const std::atomic<bool>* interrupt);

  // One target pass over the tree; returns the target's sample after each node, valid until the next call. kPartial:
  // the tree's positions follow the pending rows, and it sees the partial KV. Otherwise they follow the full KV's rows;
  // the tree begins with the pending tokens, if there are any, and judges them again; their rows are dropped when it is
  // committed.
  std::span<const int32_t> verify(const Tree& tree, StepMode mode = StepMode::kFull) {
    return pass_->verify(tree, mode);
  }
  // A partial step that computes nodes [first, size) of a tree behind the full KV's rows, whose other nodes earlier
  // calls have computed. What is ranked after the new nodes is valid until the next call. REQUIRES: nothing is pending;
  // grow_rows of them at most.
  Ranked grow(const Tree& tree, int64_t first) { return pass_->grow(tree, first); }
  // Where a draft may write its tree for a step of this mode; nothing may be pending unless the mode is kPartial…
  TreeInputs tree_inputs(StepMode mode) const { return pass_->tree_inputs(mode); }
  // …and verify() of the tree that it wrote there, accepted on the device. One wait, for one copy of the result: the
  // tree as the draft had it, and which of it is right.
  std::span<const int32_t> verify(const ProposedTree& proposed, StepMode mode, Tree* tree, Acceptance* acceptance) {
    return pass_->verify(proposed, mode, tree, acceptance);
  }
  // Appends the accepted path of the tree just verified to the KV cache; after a partial step, to the pending rows.
  void commit(const Acceptance& acceptance) { pass_->commit(acceptance); }

  const MemoryPlan& plan() const { return plan_.memory; }
  const SessionLayout& layout() const { return plan_.layout; }
  int64_t rows() const { return cache_ ? cache_->rows() : 0; }  // of the full KV
  int64_t pending_rows() const { return cache_ ? cache_->pending_rows() : 0; }
  bool partial_ready() const { return partial_ && partial_->initialised(); }
  SessionStats stats() const;
  SpillFile* disk() const { return cache_ ? cache_->backing().disk() : nullptr; }  // null: nothing lives on disk
  // The logits of the last pass (after prefill: one row), for tests and benches. [rows, vocab]
  std::vector<float> logits(int64_t rows) const { return pass_->logits(rows); }

 private:
  std::unique_ptr<KvBacking> make_backing() const;
  void allocate();

  const SessionPlan plan_;
  std::unique_ptr<KvBacking> backing_;  // until the cache has it
  std::unique_ptr<SessionBuffers> buffers_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvStreamer> streamer_;  // null where all is resident
  std::unique_ptr<PartialKv> partial_;    // null where the run never outgrows its budget
  std::unique_ptr<TargetPass> pass_;      // from prefill() on
};

}  // namespace headrace
