// A draft that ranks, and look-up in the text beside it: their trees become one (merge.h). Owns both. Thread: as in
// draft.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/draft/draft.h"

namespace headrace {

class PairDraft final : public Draft {
 public:
  // `head_tree`: the largest tree of the head, and of the pair but for its levels.
  PairDraft(std::unique_ptr<Draft> head, std::unique_ptr<Draft> look_up, const TreeLimits& head_tree)
      : head_(std::move(head)), look_up_(std::move(look_up)), head_tree_(head_tree) {}

  DraftMemory memory() const override;
  bool reads_last_layer() const override { return head_->reads_last_layer(); }
  // Look-up starts from the prompt's tokens.
  void resume(std::unique_ptr<KeptDraft> kept, int64_t rows) override { head_->resume(std::move(kept), rows); }
  std::unique_ptr<KeptDraft> keep(int32_t next, int64_t position) override { return head_->keep(next, position); }
  void allocate(Stream& compute) override;
  void attach(const KvCache& cache) override { head_->attach(cache); }
  std::vector<PromptStates> prompt_states() override { return head_->prompt_states(); }
  void prefill_layer(const LayerInput& input) override { head_->prefill_layer(input); }
  bool finish_prefill(std::span<const int32_t> prompt, Progress* progress, const std::atomic<bool>* interrupt) override;
  void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) override;
  ProposedTree propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) override;
  void pass_layer(const LayerInput& input) override { head_->pass_layer(input); }
  void observe(const Tree& tree, const Acceptance& acceptance) override;
  void rewind(int64_t position) override;

 private:
  void look_up(int32_t root, int64_t position, const TreeLimits& limits);
  TreeLimits of_head(const TreeLimits& limits) const;

  const std::unique_ptr<Draft> head_, look_up_;
  const TreeLimits head_tree_;
  Tree proposed_, found_;
  bool looked_up_ = false;  // found_ is of the step
};

}  // namespace headrace
