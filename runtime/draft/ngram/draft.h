// The draft without weights (--spec-type ngram-simple): NgramIndex over the prompt and the answer. Runs on the host.
// Thread: as in draft.h.
#pragma once

#include <algorithm>
#include <optional>

#include "offload/device/device.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/ngram/index.h"

namespace headrace {

class NgramDraft final : public Draft {
 public:
  NgramDraft(Device& device, const NgramLimits& limits, int64_t context_tokens)
      : device_(device), limits_(limits), context_tokens_(context_tokens) {}

  DraftMemory memory() const override { return {.pinned_bytes = whole_pages(NgramIndex::bytes(context_tokens_))}; }
  void allocate(Stream&) override {
    memory_ = device_.host_mem().reserve(whole_pages(NgramIndex::bytes(context_tokens_)), "the draft's index");
    index_.emplace(context_tokens_);
  }
  void prefill_layer(const LayerInput&) override {}
  bool finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) override {
    index_->append(prompt);
    return true;
  }

  void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) override {
    CHECK(index_->size() == position, "size=", index_->size(), " position=", position);
    index_->append(root);
    NgramLimits here = limits_;
    here.nodes = std::min(here.nodes, limits.nodes);
    here.depth = std::min(here.depth, limits.levels);
    index_->propose(here, tree);
  }
  void pass_layer(const LayerInput&) override {}
  void observe(const Tree& tree, const Acceptance& acceptance) override {
    for (size_t i = 1; i < acceptance.nodes.size(); ++i)  // the root is already there
      index_->append(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
  }
  void rewind(int64_t position) override { index_->cut(position + 1); }  // the token at `position` is certain

 private:
  Device& device_;
  const NgramLimits limits_;
  const int64_t context_tokens_;
  MemoryBudget::Reservation memory_;
  std::optional<NgramIndex> index_;
};

}  // namespace headrace
