#include <algorithm>
#include <optional>

#include "runtime/draft/layer_draft_model.h"
#include "runtime/draft/small_lm/draft.h"
#include "runtime/draft/tokenizer.h"
#include "runtime/model/config_check.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/state_groups.h"

namespace headrace {
namespace {

// As in SpecExtend's code, for a model of 68M; but half of a model's positions are the most that it uses well: with
// 1,536 rows small-lm, of 2,048 positions, has 0.8 times the tau of 1,024 (bench/results/draft_cache_h200.json).
constexpr int64_t kUsualChunks = 32;

// Vocabularies are padded to convenient sizes: models of one family differ in that and can draft for each other
// (Qwen2.5: 151,936 ids of 0.5B, 152,064 of 7B). Only both tokenizers can show whether padding is the only difference.
void check_sizes(const Checkpoint& draft, const ModelConfig& target, const Tokenizer* own, const Tokenizer* tokenizer) {
  const int64_t vocab = draft.config().vocab, shared = std::min(vocab, target.vocab);
  if (vocab == target.vocab) return;
  const bool known = own != nullptr && tokenizer != nullptr;
  if (known && only_padding_from(*own, shared) && only_padding_from(*tokenizer, shared)) return;
  throw_error(
      ExitCode::kBadInput, draft.path(),
      str("has a vocabulary of ", vocab, ", the target's vocabulary is ", target.vocab),
      known ? str("a draft needs its target's own tokenizer, and one of the two names tokens from ", shared, " on")
            : std::string("a draft needs its target's own tokenizer, and one of the two has none to compare"));
}

class SimpleModel final : public LayerDraftModel<Checkpoint, Weights> {
 public:
  SimpleModel(const DraftOptions& options, const TreeShape& tree, Device& device, const DraftTarget& target)
      : LayerDraftModel(options, tree, device, open_fitting(options.model, target), target.weights->options()),
        window_(options.window),
        retrieval_(options.retrieval),
        config_(checkpoint_->config()),
        target_(*target.config) {
    override_rope(options.rope, kDraftRopeFlags, &config_.rope, &config_.max_positions);
  }

  DraftWindow window(const DraftRun& run) const override {
    if (retrieval_) {
      return retrieval_window(*retrieval_, kUsualChunks, window_, config_.max_positions / 2, run.context_tokens);
    }
    if (window_ >= 0) return {.rows = window_};
    return {.rows = usual_window(config_.max_positions, run.context_tokens, tree_.deepest())};
  }

  std::unique_ptr<Draft> start(const DraftRun& run) override {
    DraftSetup setup = setup_of(run, target_);
    setup.target_vocab = target_.vocab;
    return std::make_unique<SimpleDraft>(device_, config_, weights_, setup);
  }

 private:
  // A draft without a tokenizer file (weights and a config, as small models trained for one target are shipped) is
  // assumed to have its target's if its vocabulary is as large.
  static std::unique_ptr<Checkpoint> open_fitting(const std::string& model, const DraftTarget& target) {
    std::unique_ptr<Checkpoint> draft = open_checkpoint(model);
    if (StateGroups(draft->config()).recurrent_layers() > 0) {
      throw_error(ExitCode::kBadInput, draft->path(),
                  "has layers with a recurrent state: models that have them cannot be drafts");
    }
    if (StateGroups(draft->config()).window_layers() > 0) {
      throw_error(ExitCode::kBadInput, draft->path(),
                  "has layers with a window: models that have them cannot be drafts");
    }
    if (const int64_t head_dim = draft->config().attention().head_dim; head_dim > kMaxDraftHeadDim) {
      throw_error(ExitCode::kBadInput, draft->path(),
                  str("has heads of ", head_dim, "; a draft has at most ", kMaxDraftHeadDim));
    }
    std::optional<Tokenizer> own;
    if (target.tokenizer != nullptr && draft->has_tokenizer()) own = draft->load_tokenizer();
    if (own) check_tokenizer(*own, *target.tokenizer, draft->path());
    check_sizes(*draft, *target.config, own ? &*own : nullptr, target.tokenizer);
    return draft;
  }

  const int64_t window_;  // -1: the default
  const std::optional<RetrievalShape> retrieval_;
  ModelConfig config_;  // the checkpoint's, with the options applied
  const ModelConfig target_;
};

}  // namespace

std::unique_ptr<DraftModel> open_simple_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                              const DraftTarget& target) {
  return std::make_unique<SimpleModel>(options, tree, device, target);
}

}  // namespace headrace
