#include "runtime/draft/pair/draft.h"

#include <algorithm>

#include "runtime/draft/pair/merge.h"

namespace headrace {

DraftMemory PairDraft::memory() const {
  DraftMemory both = head_->memory();
  const DraftMemory beside = look_up_->memory();
  both.lasting_bytes += beside.lasting_bytes;
  both.prefill_bytes += beside.prefill_bytes;
  both.pinned_bytes += beside.pinned_bytes;
  return both;
}

void PairDraft::allocate(Stream& compute) {
  head_->allocate(compute);
  look_up_->allocate(compute);
}

bool PairDraft::finish_prefill(std::span<const int32_t> prompt, Progress* progress,
                               const std::atomic<bool>* interrupt) {
  return head_->finish_prefill(prompt, progress, interrupt) && look_up_->finish_prefill(prompt, nullptr, interrupt);
}

TreeLimits PairDraft::of_head(const TreeLimits& limits) const {
  return {.nodes = std::min(limits.nodes, head_tree_.nodes), .levels = std::min(limits.levels, head_tree_.levels)};
}

void PairDraft::look_up(int32_t root, int64_t position, const TreeLimits& limits) {
  if (!looked_up_) look_up_->propose(root, position, limits, &found_);
  looked_up_ = true;
}

void PairDraft::propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) {
  look_up(root, position, limits);
  head_->propose(root, position, of_head(limits), &proposed_);
  merge_trees(proposed_, found_, std::min(limits.nodes, head_tree_.nodes), tree);
}

// Where nothing is found the tree stays on the device.
ProposedTree PairDraft::propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) {
  look_up(root, position, limits);
  if (found_.size() > 1) return {};
  return head_->propose_into(root, position, of_head(limits), to);
}

void PairDraft::observe(const Tree& tree, const Acceptance& acceptance) {
  looked_up_ = false;
  head_->observe(tree, acceptance);
  look_up_->observe(tree, acceptance);
}

void PairDraft::rewind(int64_t position) {
  looked_up_ = false;
  head_->rewind(position);
  look_up_->rewind(position);
}

}  // namespace headrace
