#include <algorithm>
#include <optional>

#include "runtime/base/sha256.h"
#include "runtime/draft/eagle3/draft.h"
#include "runtime/draft/layer_draft_model.h"
#include "runtime/draft/tokenizer.h"

namespace headrace {
namespace {

constexpr int64_t kUsualChunks = 64;  // as in SpecExtend's code

// Identifies what turns the target's states into a feature: fc, its norms, and the layers. The weights count by their
// files as a whole.
Digest eagle3_states_identity(const Eagle3Config& config, DType type, const Digest& weights) {
  std::string text = str("eagle3 ", digest_text(weights), " ", dtype_name(type), " ", config.rms_eps);
  for (const int64_t layer : config.feature_layers) text += str(" ", layer);
  Sha256 hash;
  hash.update(text);
  return hash.finish();
}

class Eagle3Model final : public LayerDraftModel<Eagle3Checkpoint, Eagle3Weights> {
 public:
  Eagle3Model(const DraftOptions& options, const TreeShape& tree, Device& device, const DraftTarget& target)
      : LayerDraftModel(options, tree, device, open_eagle3(options.model, *target.config), target.weights->options()),
        target_(*target.weights),
        target_config_(*target.config),
        window_(options.window),
        retrieval_(options.retrieval),
        config_(checkpoint_->config()) {
    check_branches(tree_, config_.vocab, checkpoint_->path());
    if (target.tokenizer != nullptr) check_tokenizer_in(checkpoint_->path(), *target.tokenizer);
    if (options.window >= 0) config_.sliding_window = options.window;
    override_rope(options.rope, kDraftRopeFlags, &config_.rope, &config_.max_positions);
    const bool scaled = config_.rope.scaling != RopeScaling::kNone && config_.rope.factor > 1;
    trained_short_ = options.window < 0 && config_.sliding_window == 0 && !scaled;
    // The part that is attended to row by row must be fully visible.
    int64_t& window = config_.sliding_window;
    if (window > 0) window = std::max(window, kMinDraftWindow);
  }

  // Far beyond the positions that it was trained with, a head guesses worse with all rows than with a window.
  DraftWindow window(const DraftRun& run) const override {
    if (retrieval_) {
      const int64_t own = checkpoint_->config().sliding_window,
                    most = trained_window(config_.max_positions, tree_.deepest());
      return retrieval_window(*retrieval_, kUsualChunks, window_, own > 0 ? std::min(own, most) : most,
                              run.context_tokens);
    }
    if (!trained_short_ || run.context_tokens <= config_.max_positions) return {.rows = config_.sliding_window};
    return {.rows = trained_window(config_.max_positions, tree_.deepest()), .trained_positions = config_.max_positions};
  }
  DraftNeeds needs(const DraftRun& run, const WeightsFingerprint& fingerprint) const override {
    if (!fingerprint_) fingerprint_ = fingerprint(*checkpoint_);
    DraftCacheShape shape;
    shape.context_rows = run.context_tokens;
    const DraftWindow seen = window(run);
    shape.window = seen.retrieval.chunks > 0 ? 0 : seen.rows;
    return {.row_bytes = static_cast<uint64_t>(config_.hidden) * dtype_bytes(weights_.dtype()),
            .type = weights_.dtype(),
            .first_row = shape.first_kept(run.prompt_tokens - 1),
            .identity = eagle3_states_identity(config_, weights_.dtype(), *fingerprint_)};
  }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<Eagle3Draft>(device_, config_, weights_, target_, setup_of(run, target_config_));
  }

 private:
  const Weights& target_;
  const ModelConfig target_config_;
  const int64_t window_;  // -1: none was asked for
  const std::optional<RetrievalShape> retrieval_;
  Eagle3Config config_;                        // the checkpoint's, with the options applied
  bool trained_short_ = false;                 // only its positions limit what it attends to
  mutable std::optional<Digest> fingerprint_;  // set on first use
};

}  // namespace

std::unique_ptr<DraftModel> open_eagle3_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                              const DraftTarget& target) {
  return std::make_unique<Eagle3Model>(options, tree, device, target);
}

}  // namespace headrace
