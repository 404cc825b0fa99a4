// Grows a draft's tree on the device, level by level, from the logits that the draft's forwards give (EAGLE-2 section
// 4, OPT-Tree section 3, LongSpec section 3.2; kernels/tree/op.h has the steps). What every draft that ranks a
// vocabulary shares. Owns the candidates' memory. Thread: one at a time.
//
// A round: begin(); for level 0, 1, … while level < levels(): forward rows(level) rows (level 0: the row that the root
// follows; later the frontier's) and grow(level, …); then select(), to where the target's pass takes the tree from or,
// for the host, to rows() and bring().
#pragma once

#include <cstdint>

#include "kernels/sample/op.h"
#include "kernels/tree/op.h"
#include "offload/device/device.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/draft/draft.h"
#include "runtime/speculation/policy/tree_policy.h"
#include "runtime/speculation/tree.h"

namespace headrace {

struct TreeSetup {
  TreeShape shape;
  int64_t vocab = 0;             // tokens that are ranked: the first of a row of logits
  int64_t stride = 0;            // of the draft's logits; 0: vocab
  const int32_t* map = nullptr;  // [vocab], device: the target's token of each; null: the same
  SamplingSettings sampling{};   // the run's
  int64_t position_offset = 1;   // from a forwarded row's position to that of the tokens it predicts, in the target
  int64_t first_row = 0;         // the pass row of the first node that is forwarded
};

// Where a round starts, in device memory.
struct TreeRoot {
  const int32_t *token, *position;  // [1]: the target's
  const int32_t* committed;         // [1]: rows of the draft's cache before the tree
  const int32_t* slot_shift;        // [1]: TreeInputs
};

class TreeBuilder {
 public:
  TreeBuilder(Device& device, const TreeSetup& setup);
  ~TreeBuilder();
  static uint64_t device_bytes(const TreeSetup& setup);
  static uint64_t pinned_bytes(const TreeSetup& setup);

  void begin(const TreeLimits& limits);
  int64_t nodes() const { return round_.nodes; }
  int64_t levels() const;
  int64_t rows(int64_t level) const;            // that level `level` forwards
  int64_t first_pass_row(int64_t level) const;  // of them; from level 1 on
  // logits [rows(level), vocab] of rows at `positions` [rows(level)].
  void grow(int64_t level, const float* logits, const int32_t* positions, const TreeRoot& root, Stream& stream);
  // What level + 1 forwards. Its rows' parents are named as rows of the level before.
  const TreeFrontier& frontier() const;
  // Whether the policy has a rule by which levels to come may change nothing, and whether they would now; the second
  // waits for the stream, if there is such a rule.
  bool stops_early() const { return round_.threshold >= 0; }
  bool stopped(Stream& stream);
  void select(const TreeRoot& root, const TreeRows& to, Stream& stream);
  // Rows of the builder's own, and the tree that was selected into them, on the host; waits for the stream.
  TreeRows own_rows() const;
  void bring(Stream& stream, Tree* tree);
  // What the round enqueues depends on its shape and on where it selects to: a part of a Replay::Key, never 0. `to` is
  // the builder's own or the run's only other.
  int64_t key_of(const TreeRows& to) const;
  // A tree of as many nodes as the round may have, whatever the draft says, since no level is left out.
  ProposedTree proposed() const { return {.nodes = nodes(), .levels = levels()}; }

 private:
  struct Work;
  static Work carve(const TreeSetup& setup, BumpAllocator& allocator);

  const TreeSetup setup_;
  TreeLimits limits_;
  TreeShape round_;  // the setup's shape within the limits
  DeviceBuffer memory_;
  PinnedBuffer host_;
  std::unique_ptr<Work> work_;
};

}  // namespace headrace
