#include <algorithm>

#include "runtime/draft/draft_model.h"
#include "runtime/draft/ngram/draft.h"

namespace headrace {
namespace {

class NgramModel final : public DraftModel {
 public:
  NgramModel(const DraftOptions& options, Device& device) : device_(device) {
    // The cost of one more row decides how unlikely a guess may be.
    if (device.backend() == Backend::kCuda) limits_ = {.nodes = 64, .depth = 16, .likelihood = 0.02};
    if (options.most_tokens > 0) limits_.nodes = std::min(limits_.nodes, options.most_tokens + 1);
  }

  bool load(Progress*, const std::atomic<bool>*) override { return true; }
  bool loaded() const override { return true; }
  uint64_t weights_bytes() const override { return 0; }
  SpecType type() const override { return SpecType::kNgram; }
  TreeLimits tree() const override { return {.nodes = limits_.nodes, .levels = limits_.depth}; }
  bool tunes_trees() const override { return false; }
  bool finds_trees() const override { return true; }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<NgramDraft>(device_, limits_, run.context_tokens,
                                        run.earlier_answers ? &earlier_ : nullptr);
  }

 private:
  Device& device_;
  NgramLimits limits_;
  EarlierAnswers earlier_;
};

}  // namespace

std::unique_ptr<DraftModel> open_ngram_draft(const DraftOptions& options, Device& device) {
  return std::make_unique<NgramModel>(options, device);
}

}  // namespace headrace
