// The interface of all drafts (docs/design.md, section 2). A draft proposes a tree of tokens, the target verifies it in
// one pass, and the draft receives the accepted path. A draft can change the speed, never the text. One object a run;
// it owns the memory of its run and reads weights that others own.
//
// Way of use (runtime/engine/engine.cc): memory() while the run is planned; allocate(); prefill_layer() for each layer,
// most of which a draft passes over, and finish_prefill(), by Session::prefill; then, step after step, propose() or
// propose_into(), pass_layer() by Session::verify, observe(). Thread: one at a time; device work goes to the run's
// compute stream.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/layout.h"
#include "kernels/tree/op.h"
#include "offload/device/stream.h"
#include "runtime/base/progress.h"
#include "runtime/speculation/accept.h"
#include "runtime/speculation/tree.h"

namespace headrace {

// What a run's draft takes beside its weights.
struct DraftMemory {
  uint64_t lasting_bytes = 0;  // device memory of the whole run
  uint64_t prefill_bytes = 0;  // device memory while the prompt is computed
  uint64_t pinned_bytes = 0;
};

// What a draft keeps of the target's states for the prompt's rows, until finish_prefill(): a saved prefix has it for
// rows that are not computed.
struct DraftNeeds {
  uint64_t row_bytes = 0;              // 0: it needs nothing but tokens
  DType type = DType::kF32;            // of a row's elements
  int64_t first_row = 0;               // rows from here on; and, unless it is 0, the first few
  std::array<uint8_t, 32> identity{};  // of what makes such a row of the target's states
};
// Rows [first, first + rows), [rows, row_bytes] in device memory.
struct PromptStates {
  std::byte* data;
  int64_t first, rows;
};
// Where saved prefixes are in use a draft keeps whole segments: the first, and those from here on. One more than it
// needs, as the next prompt may be a little shorter.
inline int64_t draft_states_from(int64_t first_row) {
  return first_row == 0 ? 0 : segment_range(std::max<int64_t>(0, segment_of(first_row) - 1)).begin;
}

// The residual stream of the target as it enters a layer, [rows, hidden] in the weights' type, device memory.
struct LayerInput {
  int64_t layer;
  const void* hidden;
  int64_t rows;
  int64_t first = 0;  // the prompt's row that they begin with: those before it come from a saved prefix
};

// Where the target's pass takes a tree from in device memory: a draft that has it there puts it there, and the host
// sees it no sooner than what came of it.
struct TreeInputs {
  TreeRows rows;
  int32_t slot_shift = 0;  // of this step
};

// A tree in TreeInputs.
struct ProposedTree {
  int64_t nodes = 0;   // 0: there is none
  int64_t levels = 0;  // that it may have below its root
};

class KvCache;

class Draft {
 public:
  virtual ~Draft() = default;
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  virtual DraftMemory memory() const = 0;

  // Whether it reads the target's KV cache: its last layer is then resident as a whole, whatever --kv says.
  virtual bool reads_last_layer() const { return false; }

  // `compute` outlives the draft. Called once, before prefill.
  virtual void allocate(Stream& compute) = 0;
  // The target's KV cache, where it is to be read. Called once, before prefill; the cache lasts until the last
  // propose().
  virtual void attach(const KvCache&) {}

  // What saved prefixes bring before prefill, and take before finish_prefill(); empty where DraftNeeds is.
  virtual std::vector<PromptStates> prompt_states() { return {}; }
  // Prefill: the states of the whole prompt, but for what is saved, as they enter a layer, for layers [0, layers).
  // Enqueues, waits for nothing.
  virtual void prefill_layer(const LayerInput& input) = 0;
  // All layers have been seen. What prefill alone needed is given back. A draft that reads the prompt itself tells how
  // far it is; false: `interrupt` was set on the way. Both may be null.
  virtual bool finish_prefill(std::span<const int32_t> prompt, Progress* progress,
                              const std::atomic<bool>* interrupt) = 0;

  // `root` is the last sampled token, at position `position`, not yet in the KV cache. The tree stays within `limits`.
  virtual void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) = 0;
  // The same into device memory: enqueues, and waits for nothing. No tree, and nothing done: this draft, or this shape
  // of tree, needs the host, and propose() is to be called.
  virtual ProposedTree propose_into(int32_t, int64_t, const TreeLimits&, const TreeInputs&) { return {}; }
  // A verify pass over the proposed tree: its nodes' states as they enter a layer.
  virtual void pass_layer(const LayerInput& input) = 0;
  // What was right of the tree.
  virtual void observe(const Tree& tree, const Acceptance& acceptance) = 0;
  // Discards provisional tokens from `position` on, at most DraftRun::most_pending of them. The last pass had them
  // before the proposed tree, and the observe() that follows reports them again.
  virtual void rewind(int64_t position) = 0;

 protected:
  Draft() = default;
};

}  // namespace headrace
