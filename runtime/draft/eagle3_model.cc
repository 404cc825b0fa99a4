#include "runtime/draft/eagle3_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/draft/draft_tokenizer.h"
#include "runtime/draft/eagle3.h"
#include "runtime/sha256.h"

namespace headrace {
namespace {

// Of what turns the target's states into a feature: fc, what it is normalised with, and which layers they are of. The
// files as a whole stand for the weights.
Digest eagle3_states_identity(const Eagle3Config& config, DType type, const Digest& weights) {
  std::string text = str("eagle3 ", digest_text(weights), " ", dtype_name(type), " ", config.rms_eps);
  for (const int64_t layer : config.feature_layers) text += str(" ", layer);
  Sha256 hash;
  hash.update(text);
  return hash.finish();
}

class Eagle3Model final : public DraftModel {
 public:
  Eagle3Model(const DraftOptions& options, const TreeShape& tree, Device& device, const Eagle3Target& target,
              const Tokenizer* tokenizer)
      : device_(device),
        target_(*target.weights),
        tree_(tree),
        tunes_trees_(!options.tree),
        checkpoint_(open_eagle3(options.model, *target.config)),
        config_(checkpoint_->config()),
        weights_(Eagle3Weights::reserve(*checkpoint_, device, target_.dtype())) {
    check_branches(tree_, config_.vocab, checkpoint_->path());
    if (tokenizer != nullptr) check_tokenizer_in(checkpoint_->path(), *tokenizer);
    if (options.window >= 0) config_.sliding_window = options.window;
    if (options.rope_theta > 0) config_.rope.theta = options.rope_theta;
    // What is attended to row by row is always seen whole.
    int64_t& window = config_.sliding_window;
    if (window > 0) window = std::max(window, kLeastDraftWindow);
  }

  bool load(Progress* progress, const std::atomic<bool>* interrupt) override {
    return weights_.loaded() || weights_.load(*checkpoint_, device_, progress, interrupt);
  }
  bool loaded() const override { return weights_.loaded(); }
  uint64_t staging_bytes() const override { return weights_.staging_bytes(); }
  uint64_t weights_bytes() const override { return weights_.bytes(); }
  SpecType type() const override { return SpecType::kEagle3; }
  TreeLimits tree() const override { return {.nodes = tree_.nodes, .levels = tree_.deepest()}; }
  bool tunes_trees() const override { return tunes_trees_; }

  DraftNeeds needs(const DraftRun& run, const WeightsFingerprint& fingerprint) const override {
    if (!fingerprint_) fingerprint_ = fingerprint(*checkpoint_);
    DraftCacheShape shape;
    shape.context_rows = run.context_tokens;
    shape.window = config_.sliding_window;
    return {.row_bytes = static_cast<uint64_t>(config_.hidden) * dtype_bytes(weights_.dtype()),
            .first_row = shape.first_kept(run.prompt_tokens - 1),
            .identity = eagle3_states_identity(config_, weights_.dtype(), *fingerprint_)};
  }
  std::vector<FileStamp> files() const override { return checkpoint_->files(); }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<Eagle3Draft>(device_, config_, weights_, target_,
                                         DraftSetup{.tree = tree_,
                                                    .window = config_.sliding_window,
                                                    .prompt_tokens = run.prompt_tokens,
                                                    .context_tokens = run.context_tokens,
                                                    .most_pending = run.most_pending,
                                                    .pass_nodes = run.pass_nodes,
                                                    .sampling = run.sampling,
                                                    .saves = run.saves});
  }

  std::string describe() const override {
    return str("draft-eagle3 ", checkpoint_->path(), ", ",
               config_.sliding_window > 0 ? str("window ", config_.sliding_window) : std::string("no window"),
               tunes_trees_ ? ", trees of up to " : ", trees of ", tree_.nodes);
  }

 private:
  Device& device_;
  const Weights& target_;
  const TreeShape tree_;
  const bool tunes_trees_;
  const std::unique_ptr<Eagle3Checkpoint> checkpoint_;
  Eagle3Config config_;  // the checkpoint's, with the options in place
  Eagle3Weights weights_;
  mutable std::optional<Digest> fingerprint_;  // once it was asked for
};

}  // namespace

std::unique_ptr<DraftModel> open_eagle3_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                              const Eagle3Target& target, const Tokenizer* tokenizer) {
  return std::make_unique<Eagle3Model>(options, tree, device, target, tokenizer);
}

}  // namespace headrace
