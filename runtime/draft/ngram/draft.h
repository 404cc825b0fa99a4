// The draft without weights (--spec-type ngram-simple): NgramIndex over the prompt and the answer, and over earlier
// answers before them. Runs on the host. Thread: as in draft.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "offload/device/device.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/ngram/index.h"

namespace headrace {

// The answers of earlier runs, the latest kTokens tokens of them: what a batch of like requests says again.
class EarlierAnswers {
 public:
  static constexpr int64_t kTokens = 8192;
  // Behind each answer; no token of a text.
  static constexpr int32_t kEnd = -1;

  std::span<const int32_t> tokens() const { return tokens_; }
  void add(std::span<const int32_t> answer) {
    if (answer.empty()) return;
    answer = answer.last(std::min(answer.size(), static_cast<size_t>(kTokens - 1)));
    const size_t size = tokens_.size() + answer.size() + 1, most = static_cast<size_t>(kTokens);
    if (size > most) tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(size - most));
    tokens_.insert(tokens_.end(), answer.begin(), answer.end());
    tokens_.push_back(kEnd);
  }

 private:
  std::vector<int32_t> tokens_;
};

class NgramDraft final : public Draft {
 public:
  // `earlier`: null, or the answers that it begins with and to which it adds its own; they outlive it.
  NgramDraft(Device& device, const NgramLimits& limits, int64_t context_tokens, EarlierAnswers* earlier)
      : device_(device),
        limits_(limits),
        most_tokens_(context_tokens + (earlier != nullptr ? EarlierAnswers::kTokens : 0)),
        earlier_(earlier) {}
  ~NgramDraft() override {
    if (earlier_ != nullptr && prompt_end_ > 0) earlier_->add(index_->text().subspan(static_cast<size_t>(prompt_end_)));
  }

  DraftMemory memory() const override { return {.pinned_bytes = whole_pages(NgramIndex::bytes(most_tokens_))}; }
  void allocate(Stream&) override {
    memory_ = device_.host_mem().reserve(whole_pages(NgramIndex::bytes(most_tokens_)), "the draft's index");
    index_.emplace(most_tokens_);
  }
  void prefill_layer(const LayerInput&) override {}
  bool finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) override {
    if (earlier_ != nullptr) index_->append(earlier_->tokens());
    before_ = index_->size();
    index_->append(prompt);
    prompt_end_ = index_->size();
    return true;
  }

  void propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) override {
    CHECK(index_->size() == before_ + position, "size=", index_->size(), " position=", position);
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
  void rewind(int64_t position) override {  // the token at `position` is certain
    index_->cut(before_ + position + 1);
  }

 private:
  Device& device_;
  const NgramLimits limits_;
  const int64_t most_tokens_;
  EarlierAnswers* const earlier_;
  MemoryBudget::Reservation memory_;
  std::optional<NgramIndex> index_;
  int64_t before_ = 0, prompt_end_ = 0;  // tokens before the prompt; and with it
};

}  // namespace headrace
