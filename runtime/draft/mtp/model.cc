// The opened MTP block: its weights are the target's. Thread: as in runtime/draft/draft_model.h.

#include "runtime/base/sha256.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/mtp/draft.h"

namespace headrace {
namespace {

// Of a run without room for all rows: 32 MiB of the 27B's.
constexpr int64_t kSmallWindow = 8192;

class MtpModel final : public DraftModel {
 public:
  MtpModel(const DraftOptions& options, const TreeShape& tree, Device& device, const DraftTarget& target)
      : device_(device),
        config_(*target.config),
        target_(*target.weights),
        tree_(tree),
        tunes_trees_(!options.tree),
        window_(options.window) {
    CHECK(target_.mtp() != nullptr, "a model without an MTP block");
  }

  bool load(Progress*, const std::atomic<bool>*) override { return true; }
  bool loaded() const override { return true; }
  uint64_t weights_bytes() const override { return 0; }  // they count as the target's
  SpecType type() const override { return SpecType::kMtp; }
  TreeLimits tree() const override { return {.nodes = tree_.nodes, .levels = tree_.deepest()}; }
  bool tunes_trees() const override { return tunes_trees_; }
  bool may_be_windowed(const DraftRun& run) const override {
    return window_ < 0 && !run.windowed && run.context_tokens > kSmallWindow;
  }
  DraftWindow window(const DraftRun& run) const override { return {.rows = window_of(run)}; }
  // States of the target, which the identity of its rows names.
  DraftNeeds needs(const DraftRun& run, const WeightsFingerprint&) const override {
    const DraftCacheShape shape{.context_rows = run.context_tokens, .window = window_of(run)};
    Sha256 hash;
    hash.update(str("states after the last norm ", dtype_name(target_.dtype())));
    return {.row_bytes = static_cast<uint64_t>(config_.hidden) * dtype_bytes(target_.dtype()),
            .type = target_.dtype(),
            .first_row = shape.first_kept(run.prompt_tokens - 1),
            .identity = hash.finish()};
  }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<MtpDraft>(device_, config_, target_,
                                      DraftSetup{.run = run, .tree = tree_, .window = window_of(run)});
  }

 private:
  int64_t window_of(const DraftRun& run) const { return window_ >= 0 ? window_ : run.windowed ? kSmallWindow : 0; }

  Device& device_;
  const ModelConfig& config_;
  const Weights& target_;
  const TreeShape tree_;
  const bool tunes_trees_;
  const int64_t window_;  // 0: all rows, as -1, but that a run may have a window then
};

}  // namespace

std::unique_ptr<DraftModel> open_mtp_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                           const DraftTarget& target) {
  return std::make_unique<MtpModel>(options, tree, device, target);
}

}  // namespace headrace
