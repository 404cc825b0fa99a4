// Grows a draft's tree on the device, level by level, from the logits of the draft's forwards (EAGLE-2 section 4,
// OPT-Tree section 3, LongSpec appendix E; kernels/tree/op.h has the steps). Shared by all drafts that rank a
// vocabulary. Owns the candidates' memory. Thread: one at a time.
//
// Call order of a round: begin(); for level 0, 1, … while level < levels(): forward rows(level) rows (level 0: the row
// before the root; later the frontier's) and grow(level, …); then select() to the memory from which the target's pass
// reads the tree or, for the host, to own_rows() and to_host().
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
  int64_t vocab = 0;             // ranked tokens: the first of a row of logits
  int64_t stride = 0;            // of the draft's logits; 0: vocab
  const int32_t* map = nullptr;  // [vocab], device: the target's id of each; null: the same ids
  SamplingSettings sampling{};   // of the run
  int64_t position_offset = 1;   // from a forwarded row's position to the target position of the tokens it predicts
  int64_t first_row = 0;         // the pass row of the first forwarded node
};

// The start of a round, in device memory.
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
  int64_t rows(int64_t level) const;            // forwarded by level `level`
  int64_t first_pass_row(int64_t level) const;  // of those; from level 1 on
  // logits [rows(level), vocab] of rows at `positions` [rows(level)].
  void grow(int64_t level, const float* logits, const int32_t* positions, const TreeRoot& root, Stream& stream);
  // The rows that level + 1 forwards. Their parents are rows of the previous level.
  const TreeFrontier& frontier() const;
  // Whether the policy has a rule by which later levels may change nothing, and whether it applies now. The second
  // waits for the stream if there is such a rule.
  bool stops_early() const { return round_.threshold >= 0; }
  bool stopped(Stream& stream);
  void select(const TreeRoot& root, const TreeRows& to, Stream& stream);
  // The builder's own rows; to_host() returns the selected tree on the host and waits for the stream.
  TreeRows own_rows() const;
  void to_host(Stream& stream, Tree* tree);
  // The enqueued work of a round depends on its shape and destination: a part of a Replay::Key, never 0. `to` is the
  // builder's own or the run's only other destination.
  int64_t key_of(const TreeRows& to) const;
  // The tree always has as many nodes as the round allows, because no level is skipped.
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
