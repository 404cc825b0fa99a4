// The interface of all drafts (docs/design.md, section 2). A draft proposes a tree of tokens, the target verifies it in
// one pass, and the draft receives the accepted path. A draft can change the speed, never the text. One object per run;
// it owns the memory of its run and reads weights that others own.
//
// Call order (runtime/engine/attempt.cc): memory() while the run is planned; allocate(); by Executor::prefill,
// prefill_layer() for each layer, most of which a draft ignores, and finish_prefill(); then, for each step, propose()
// or propose_into(), pass_layer() by Executor::verify, observe(). Thread: one at a time; device work runs on the run's
// compute stream.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/layout.h"
#include "kernels/tree/op.h"
#include "offload/device/stream.h"
#include "runtime/base/progress.h"
#include "runtime/speculation/accept.h"
#include "runtime/speculation/tree.h"

namespace headrace {

// Memory of a run's draft, without its weights.
struct DraftMemory {
  uint64_t lasting_bytes = 0;  // device memory of the whole run
  uint64_t prefill_bytes = 0;  // device memory while the prompt is computed
  uint64_t pinned_bytes = 0;
};

// The target's states that a draft keeps for the prompt's rows until finish_prefill(); a saved prefix stores them for
// rows that are not computed.
struct DraftNeeds {
  uint64_t row_bytes = 0;              // 0: it needs only tokens
  DType type = DType::kF32;            // of a row's elements
  int64_t first_row = 0;               // rows from here on; unless it is 0, the first few too
  std::array<uint8_t, 32> identity{};  // identifies how such a row is made from the target's states
};
// Rows [first, first + rows), [rows, row_bytes] in device memory.
struct PromptStates {
  std::byte* data;
  int64_t first, rows;
};
// With saved prefixes a draft keeps whole segments: the first, and those from here on. One more than it needs, because
// the next prompt may be slightly shorter.
inline int64_t draft_states_from(int64_t first_row) {
  return first_row == 0 ? 0 : segment_range(std::max<int64_t>(0, segment_of(first_row) - 1)).begin;
}

// The target's residual stream at the input of a layer, [rows, hidden], device memory.
struct LayerInput {
  int64_t layer;  // the number of layers: the output of the last one
  const void* hidden;
  DType type;  // of hidden: the weights' type in prefill, kF32 in a pass
  int64_t rows;
  int64_t first = 0;  // the prompt's first row here: earlier rows come from a saved prefix
};

// The queries of one layer in a pass, with RoPE: the first elements of each row of [rows, stride], in device memory.
struct PassQueries {
  int64_t layer;  // of the KV cache
  const void* q;
  DType type;
  int64_t rows, stride;
};

// The query of the target's last layer after one row of a pass, with RoPE: [heads, head_dim] in device memory.
struct TargetQuery {
  const void* q;
  DType type;
  bool refresh;     // of prefill or a refresh, after which the draft's choice of rows is made anew in any case
  int64_t row = 0;  // in PassQueries
};

// Where the target's pass reads a tree in device memory. A draft that has its tree on the device writes it there, and
// the host sees the tree only with the results.
struct TreeInputs {
  TreeRows rows;
  int32_t slot_shift = 0;  // of this step
};

// A tree in TreeInputs.
struct ProposedTree {
  int64_t nodes = 0;   // 0: none
  int64_t levels = 0;  // most levels below its root
};

// How a draft ranks a token among all that it can propose.
struct TokenRank {
  bool first = false;   // it would propose this token before any other
  double log_prob = 0;  // natural; -infinity: it cannot propose the token
};

class KvCache;

// What a run's draft leaves to the draft of the next run, whose prompt begins with the same text.
class KeptDraft {
 public:
  virtual ~KeptDraft() = default;
};

class Draft {
 public:
  virtual ~Draft() = default;
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  virtual DraftMemory memory() const = 0;

  // Whether it reads the target's KV cache: the last layer is then fully resident, whatever --kv is.
  virtual bool reads_last_layer() const { return false; }

  // Continues from what keep() returned for a draft of the same model and the same DraftRun except the prompt's length
  // and the sampling: of its rows the first `rows` are this prompt's. Called before allocate(). A draft that has
  // nothing to keep starts from the prompt's tokens.
  virtual void resume(std::unique_ptr<KeptDraft> /*kept*/, int64_t /*rows*/) {}
  // Called last. The next prompt begins with at most the tokens before `position`; `next`: the token there.
  virtual std::unique_ptr<KeptDraft> keep(int32_t /*next*/, int64_t /*position*/) { return nullptr; }

  // `compute` must outlive the draft. Called once, before prefill.
  virtual void allocate(Stream& compute) = 0;
  // The target's KV cache, for drafts that read it. Called once, before prefill; the cache lasts until the last
  // propose().
  virtual void attach(const KvCache&) {}

  // States that saved prefixes restore before prefill, and read before finish_prefill(); empty if DraftNeeds is.
  virtual std::vector<PromptStates> prompt_states() { return {}; }
  // Prefill: states at the input of a layer, for layers [0, layers]: of the whole prompt, except saved rows, or of one
  // group of rows after another. Those behind the last layer are of the whole prompt, in device memory or in pinned
  // host memory, and stay until finish_prefill(). Asynchronous.
  virtual void prefill_layer(const LayerInput& input) = 0;
  // All layers are done; frees the memory of prefill. A draft that computes the prompt itself reports progress; false:
  // `interrupt` was set. Both may be null.
  virtual bool finish_prefill(std::span<const int32_t> prompt, Progress* progress,
                              const std::atomic<bool>* interrupt) = 0;

  // `root` is the last sampled token, at `position`, not yet in the KV cache. The tree stays within `limits`.
  virtual void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) = 0;
  // The same into device memory, asynchronously. An empty result: this draft, or this tree shape, needs the host;
  // nothing was done, and the caller uses propose().
  virtual ProposedTree propose_into(int32_t, int64_t, const TreeLimits&, const TreeInputs&) { return {}; }
  // Of `token` as the root's child, by the last propose(), whose limits allowed one level. None: this draft ranks no
  // vocabulary. For measurements: waits for the device.
  virtual std::optional<TokenRank> rank(int32_t /*token*/) { return std::nullopt; }
  // A verify pass over the proposed tree: the states of its nodes at the input of a layer.
  virtual void pass_layer(const LayerInput& input) = 0;
  // The accepted part of the tree.
  virtual void observe(const Tree& tree, const Acceptance& acceptance) = 0;
  // Each layer of a pass with rows in the KV cache; of prefill, the prompt's last row. Asynchronous, in graphs too.
  virtual void pass_queries(const PassQueries&) {}
  // After prefill and after each pass: the query of a row at the end of the text, until the next pass. For drafts that
  // select rows of the text by the target's attention. Asynchronous.
  virtual void observe_query(const TargetQuery&) {}
  // Discards provisional tokens from `position` on, at most DraftRun::most_pending of them. The last pass had them
  // before the proposed tree, and the observe() that follows reports them again.
  virtual void rewind(int64_t position) = 0;

 protected:
  Draft() = default;
};

}  // namespace headrace
