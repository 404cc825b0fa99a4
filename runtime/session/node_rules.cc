#include "runtime/session/node_rules.h"

#include <algorithm>

#include "offload/device/trace.h"

namespace headrace {

NodeRules::NodeRules(const SessionLayout& layout, const SessionBuffers& buffers, TokenMasks* masks)
    : layout_(layout),
      buffers_(buffers),
      masks_(masks),
      penalties_(layout.options().penalties),
      vocab_(layout.config().vocab) {
  CHECK(!on() || layout.options().rules, "a run whose plan has no memory for them");
}

void NodeRules::begin(std::span<const int32_t> prompt) {
  if (!on()) return;
  const int64_t rows = layout_.pass_rows();
  memory_ = layout_.device().allocate_pinned(layout_.rules_bytes(), "masks and penalties");
  BumpAllocator allocator(memory_.data());
  host_ = StepRules::carve(allocator, rows, vocab_);
  in_slot_.assign(static_cast<size_t>(rows), kDeadState);
  used_.assign(static_cast<size_t>(rows), -1);
  std::fill_n(host_.mask_rows, rows, -1);
  std::fill_n(host_.leaves, rows, -1);
  std::fill_n(host_.counts, vocab_, 0);
  for (const int32_t token : prompt) host_.counts[token] = kInPrompt;
}

void NodeRules::set_first() {
  if (!on()) return;
  ++pass_;
  if (masks_ != nullptr) host_.mask_rows[0] = slot_of(masks_->start());
  upload();
}

void NodeRules::count(int32_t token, int32_t change) {
  if (token >= 0 && token < vocab_) host_.counts[token] += change;
}

// The counts are those of the tokens before the tree.
void NodeRules::use_base(int64_t answered) {
  CHECK(answered <= static_cast<int64_t>(path_.size()), "answered=", answered, " of ", path_.size());
  for (; base_ > answered; --base_) count(path_[static_cast<size_t>(base_ - 1)].token, -1);
  for (; base_ < answered; ++base_) count(path_[static_cast<size_t>(base_)].token, 1);
}

void NodeRules::set(const Tree& tree, int64_t first, int64_t rows, int64_t answered) {
  if (!on()) return;
  ++pass_;
  use_base(answered);
  nodes_.resize(static_cast<size_t>(tree.size()));
  for (int64_t i = first; i < tree.size(); ++i) {
    const size_t node = static_cast<size_t>(i);
    const int32_t parent = tree.parents[node];
    nodes_[node].token = tree.tokens[node];
    if (masks_ == nullptr) continue;
    const GrammarState start = base_ > 0 ? path_[static_cast<size_t>(base_ - 1)].state : masks_->start();
    const GrammarState before = parent < 0 ? start : nodes_[static_cast<size_t>(parent)].state;
    nodes_[node].state = masks_->after(before, tree.tokens[node]);
  }
  std::copy(tree.tokens.begin(), tree.tokens.end(), host_.tokens);
  std::copy(tree.parents.begin(), tree.parents.end(), host_.parents);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t node = std::min(first + row, tree.size() - 1);
    host_.leaves[row] = static_cast<int32_t>(node);
    if (masks_ != nullptr) host_.mask_rows[row] = slot_of(nodes_[static_cast<size_t>(node)].state);
  }
  upload();
}

// Where the device has the state's mask, which is enqueued if it is new. What follows a dead state is never taken.
int32_t NodeRules::slot_of(GrammarState state) {
  if (state == kDeadState) return -1;
  const auto known = slots_.find(state);
  if (known != slots_.end()) {
    used_[static_cast<size_t>(known->second)] = pass_;
    return known->second;
  }
  while (used_[next_slot_] == pass_) next_slot_ = (next_slot_ + 1) % used_.size();  // there are as many as rows
  const size_t slot = next_slot_;
  if (in_slot_[slot] != kDeadState) slots_.erase(in_slot_[slot]);
  in_slot_[slot] = state;
  used_[slot] = pass_;
  slots_[state] = static_cast<int32_t>(slot);
  const TokenMask& mask = masks_->mask(state);
  const auto words = mask.size();
  std::copy(mask.begin(), mask.end(), host_.masks + slot * words);
  layout_.compute().copy(buffers_.step().rules.masks + slot * words, host_.masks + slot * words,
                         words * sizeof(uint32_t), Link::kHostToDevice, "mask");
  return static_cast<int32_t>(slot);
}

// All but the masks.
void NodeRules::upload() const {
  Stream& compute = layout_.compute();
  const StepRules& device = buffers_.step().rules;
  const auto bytes = static_cast<size_t>(reinterpret_cast<std::byte*>(host_.counts) - memory_.data());
  compute.copy(device.mask_rows, host_.mask_rows, bytes, Link::kHostToDevice, "rules");
  if (!penalties_.any()) return;
  compute.copy(device.counts, host_.counts, static_cast<size_t>(vocab_) * sizeof(int32_t), Link::kHostToDevice,
               "counts");
}

void NodeRules::commit(std::span<const int32_t> nodes) {
  if (!on()) return;
  path_.resize(static_cast<size_t>(base_));
  for (const int32_t node : nodes) path_.push_back(nodes_[static_cast<size_t>(node)]);
}

void NodeRules::apply(int64_t first, int64_t rows) const {
  if (!on()) return;
  Stream& compute = layout_.compute();
  const StepWork& step = buffers_.step();
  const StepRules& rules = step.rules;
  const TraceSpan span(compute, "rules");
  penalize_logits({.logits = step.logits,
                   .counts = rules.counts,
                   .tokens = rules.tokens,
                   .parents = rules.parents,
                   .leaves = rules.leaves + first,
                   .rows = rows,
                   .vocab = vocab_,
                   .settings = penalties_},
                  compute);
  if (masks_ == nullptr) return;
  mask_logits({.logits = step.logits,
               .masks = rules.masks,
               .mask_rows = rules.mask_rows + first,
               .rows = rows,
               .vocab = vocab_},
              compute);
}

}  // namespace headrace
