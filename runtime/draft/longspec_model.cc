#include "runtime/draft/longspec_model.h"

#include "runtime/draft/draft_tokenizer.h"

namespace headrace {
namespace {

class LongSpecModel final : public DraftModel {
 public:
  LongSpecModel(const DraftOptions& options, const TreeShape& tree, Device& device, const LongSpecTarget& target,
                const Tokenizer* tokenizer)
      : device_(device),
        target_(target),
        tree_(tree),
        tunes_trees_(!options.tree),
        checkpoint_(open_longspec(options.model, *target.config)),
        window_(options.window >= 0 ? options.window : checkpoint_->config().window),
        weights_(LongSpecWeights::reserve(*checkpoint_, device, target.weights->dtype())) {
    if (tokenizer != nullptr) check_tokenizer_in(checkpoint_->path(), *tokenizer);
  }

  bool load(Progress* progress, const std::atomic<bool>* interrupt) override {
    return weights_.loaded() || weights_.load(*checkpoint_, device_, progress, interrupt);
  }
  bool loaded() const override { return weights_.loaded(); }
  uint64_t weights_bytes() const override { return weights_.bytes(); }
  uint64_t staging_bytes() const override { return weights_.staging_bytes(); }
  SpecType type() const override { return SpecType::kLongSpec; }
  TreeLimits tree() const override { return {.nodes = tree_.nodes, .levels = tree_.deepest()}; }
  bool tunes_trees() const override { return tunes_trees_; }

  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<LongSpecDraft>(device_, checkpoint_->config(), weights_, target_,
                                           DraftSetup{.tree = tree_,
                                                      .window = window_,
                                                      .prompt_tokens = run.prompt_tokens,
                                                      .context_tokens = run.context_tokens,
                                                      .most_pending = run.most_pending,
                                                      .sampling = run.sampling});
  }

  std::string describe() const override {
    return str("draft-longspec ", checkpoint_->path(), ", ",
               window_ > 0 ? str("window ", window_) : std::string("no window"),
               tunes_trees_ ? ", trees of up to " : ", trees of ", tree_.nodes);
  }

 private:
  Device& device_;
  const LongSpecTarget target_;
  const TreeShape tree_;
  const bool tunes_trees_;
  const std::unique_ptr<LongSpecCheckpoint> checkpoint_;
  const int64_t window_;
  LongSpecWeights weights_;
};

}  // namespace

std::unique_ptr<DraftModel> open_longspec_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                                const LongSpecTarget& target, const Tokenizer* tokenizer) {
  return std::make_unique<LongSpecModel>(options, tree, device, target, tokenizer);
}

}  // namespace headrace
