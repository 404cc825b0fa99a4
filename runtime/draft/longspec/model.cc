#include "runtime/draft/longspec/model.h"

#include "runtime/draft/layer_draft_model.h"
#include "runtime/draft/longspec/draft.h"
#include "runtime/draft/tokenizer.h"

namespace headrace {
namespace {

class LongSpecModel final : public LayerDraftModel<LongSpecCheckpoint, LongSpecWeights> {
 public:
  LongSpecModel(const DraftOptions& options, const TreeShape& tree, Device& device, const DraftTarget& target)
      // Never quantised: its products of a whole prompt read plain weights.
      : LayerDraftModel(options, tree, device, open_longspec(options.model, *target.config), {target.weights->dtype()}),
        target_(target),
        window_(options.window >= 0 ? options.window : checkpoint_->config().window) {
    if (target.tokenizer != nullptr) check_tokenizer_in(checkpoint_->path(), *target.tokenizer);
  }

  DraftWindow window(const DraftRun&) const override { return {.rows = window_}; }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<LongSpecDraft>(device_, checkpoint_->config(), weights_, target_, setup_of(run));
  }

 private:
  const DraftTarget target_;
  const int64_t window_;
};

}  // namespace

std::unique_ptr<DraftModel> open_longspec_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                                const DraftTarget& target) {
  return std::make_unique<LongSpecModel>(options, tree, device, target);
}

}  // namespace headrace
