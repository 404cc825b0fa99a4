// One sequence: everything that has a position. The rows of its tokens, committed, pending and of passes, with a window
// the last ones; the states of layers that have no rows; snapshots of states and windows; and what partial steps read
// instead of the full KV. Nothing here depends on how passes are carried out: an Executor (executor.h) does that, and
// has what several sequences could share.
//
// Owns this memory, on the device, on the host and on disk, from allocate() to its end, but for what release() hands to
// the sequence of the next run. Borrows its run's plan, draft and saved prefix. Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/kv/kv_cache.h"
#include "runtime/kv/partial_rows.h"
#include "runtime/kv/recurrent_state.h"
#include "runtime/kv/state_snapshots.h"
#include "runtime/kv/window_rows.h"
#include "runtime/session/layout.h"

namespace headrace {

// What a sequence leaves to a later one, whose prompt begins with the same tokens.
struct KeptState {
  std::unique_ptr<KvCache> cache;             // null: there is none
  std::unique_ptr<StateSnapshots> snapshots;  // null: no layer needs them, or none is kept
};

// Statistics of a sequence so far.
struct SequenceStats {
  double host_memory_ms = 0;  // time to pin the KV cache's host memory
  double host_wait_ms = 0;    // time that prefill waited for it
  SpillStats spill;
};

class Sequence {
 public:
  // Allocates nothing. `plan` must outlive this. `kept`: of an earlier sequence with the same memory plan; the first
  // options.kept_rows rows of its cache are those of this prompt, and a snapshot is behind them.
  explicit Sequence(const SessionPlan& plan, KeptState kept = {});
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Creates the file of the disk tier (its errors are thrown here) and starts to pin the KV cache's host memory, beside
  // other work that takes `beside_bytes` of host memory. Does nothing if the budget has no room for both; allocate()
  // then does it.
  void begin_host_memory(uint64_t beside_bytes);
  // The memory that prefill fills, and the draft's. Called once.
  void allocate();

  // ---- after allocate() ----
  KvCache& cache() const { return *cache_; }
  PartialRows* partial() const { return partial_.get(); }         // null: every step reads the full KV
  WindowRows* windows() const { return windows_.get(); }          // null: no layer has a window
  RecurrentState* recurrent() const { return recurrent_.get(); }  // null: all layers have rows
  StateSnapshots* snapshots() const { return snapshots_.get(); }  // null: no prompt resumes from this one
  // Of a tree of pending tokens: the path of nodes that the pending recurrent states are behind. Empty: none.
  std::vector<int32_t>& ahead() { return ahead_; }

  Draft* draft() const { return plan_.layout.options().draft; }        // null: none
  PrefixRun* prefix() const { return plan_.layout.options().prefix; }  // null: none
  // Destination of a pass's own K and V in a layer with rows, as RecentRows has it.
  KvRows pass_destination(const StatePlace& layer, const int32_t* first) const;
  int64_t rows() const { return cache_ ? cache_->rows() : 0; }  // of the full KV
  int64_t pending_rows() const { return cache_ ? cache_->pending_rows() : 0; }
  bool partial_ready() const { return partial_ && partial_->initialised(); }
  SequenceStats stats() const;

  // Nothing may use the sequence any more, and nothing but the destructor is called afterwards.
  KeptState release() { return {.cache = std::move(cache_), .snapshots = std::move(snapshots_)}; }

 private:
  std::unique_ptr<KvBacking> make_backing() const;

  const SessionPlan& plan_;
  const bool follows_;                  // the cache is an earlier sequence's
  const SpillStats spill_before_;       // the statistics of that sequence
  std::unique_ptr<KvBacking> backing_;  // until the cache takes it
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<WindowRows> windows_;
  std::unique_ptr<RecurrentState> recurrent_;
  std::unique_ptr<StateSnapshots> snapshots_;
  std::unique_ptr<PartialRows> partial_;
  std::vector<int32_t> ahead_;
};

}  // namespace headrace
