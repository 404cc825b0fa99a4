// What a run asks of its text beyond sampling: a mask of the tokens that may follow, by a grammar, and penalties of
// tokens that the text has (kernels/sample/op.h). Both are functions of the tokens on a node's path alone, so a node
// has the same logits in whatever tree, step and mode it is computed (docs/design.md, section 6, rule 3).
//
// Owns what the host knows of the paths, and pinned memory; the device memory is StepWork's. Nothing is enqueued if the
// run asks for neither. Thread: the executor's.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/grammar/token_masks.h"
#include "runtime/session/buffers.h"
#include "runtime/speculation/tree.h"

namespace headrace {

class NodeRules {
 public:
  // `masks` may be null. All references must outlive this.
  NodeRules(const SessionLayout& layout, const SessionBuffers& buffers, TokenMasks* masks);

  bool on() const { return masks_ != nullptr || penalties_.any(); }
  // Each does nothing if the rules are off.
  void begin(std::span<const int32_t> prompt);  // after the buffers of passes are allocated
  void set_first();                             // the row behind the prompt
  // Nodes from `first` on of a tree, in pass rows 0 to rows - 1; the last node is repeated up to `rows`. `answered`:
  // tokens of the answer before the tree.
  void set(const Tree& tree, int64_t first, int64_t rows, int64_t answered);
  void commit(std::span<const int32_t> nodes);  // the accepted path of the last tree
  // Enqueues the changes of a pass's rows from `first` on.
  void apply(int64_t first, int64_t rows) const;

 private:
  // A path's last token, and the state behind it.
  struct Step {
    int32_t token = -1;
    GrammarState state = kDeadState;
  };

  void use_base(int64_t answered);
  void count(int32_t token, int32_t change);
  int32_t slot_of(GrammarState state);
  void upload() const;

  const SessionLayout& layout_;
  const SessionBuffers& buffers_;
  TokenMasks* const masks_;
  const PenaltySettings penalties_;
  const int64_t vocab_;
  PinnedBuffer memory_;
  StepRules host_{};
  std::vector<Step> path_;   // of the answer, up to the tokens that partial steps accepted
  std::vector<Step> nodes_;  // of the last tree
  int64_t base_ = 0;         // tokens of path_ before the last tree
  // Masks on the device, by slot, and in which pass each was used last.
  std::unordered_map<GrammarState, int32_t> slots_;
  std::vector<GrammarState> in_slot_;
  std::vector<int64_t> used_;
  int64_t pass_ = 0;
  size_t next_slot_ = 0;
};

}  // namespace headrace
