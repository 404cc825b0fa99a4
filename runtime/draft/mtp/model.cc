// The opened MTP block: its weights are the target's. Thread: as in runtime/draft/draft_model.h.
#include <algorithm>

#include "runtime/base/sha256.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/mtp/draft.h"

namespace headrace {
namespace {

class MtpModel final : public DraftModel {
 public:
  MtpModel(const DraftOptions& options, const TreeShape& tree, Device& device, const DraftTarget& target)
      : device_(device),
        config_(*target.config),
        target_(*target.weights),
        tree_(tree),
        tunes_trees_(!options.tree),
        window_(std::max<int64_t>(0, options.window)) {
    CHECK(target_.mtp() != nullptr, "a model without an MTP block");
  }

  bool load(Progress*, const std::atomic<bool>*) override { return true; }
  bool loaded() const override { return true; }
  uint64_t weights_bytes() const override { return 0; }  // they count as the target's
  SpecType type() const override { return SpecType::kMtp; }
  TreeLimits tree() const override { return {.nodes = tree_.nodes, .levels = tree_.deepest()}; }
  bool tunes_trees() const override { return tunes_trees_; }
  DraftWindow window(const DraftRun&) const override { return {.rows = window_}; }
  // States of the target, which the identity of its rows names.
  DraftNeeds needs(const DraftRun& run, const WeightsFingerprint&) const override {
    const DraftCacheShape shape{.context_rows = run.context_tokens, .window = window_};
    Sha256 hash;
    hash.update(str("states after the last norm ", dtype_name(target_.dtype())));
    return {.row_bytes = static_cast<uint64_t>(config_.hidden) * dtype_bytes(target_.dtype()),
            .type = target_.dtype(),
            .first_row = shape.first_kept(run.prompt_tokens - 1),
            .identity = hash.finish()};
  }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<MtpDraft>(device_, config_, target_,
                                      DraftSetup{.run = run, .tree = tree_, .window = window_});
  }

 private:
  Device& device_;
  const ModelConfig& config_;
  const Weights& target_;
  const TreeShape tree_;
  const bool tunes_trees_;
  const int64_t window_;  // 0: all rows
};

}  // namespace

std::unique_ptr<DraftModel> open_mtp_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                           const DraftTarget& target) {
  return std::make_unique<MtpModel>(options, tree, device, target);
}

}  // namespace headrace
