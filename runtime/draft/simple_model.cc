#include "runtime/draft/simple_model.h"

#include <algorithm>

#include "runtime/draft/simple.h"
#include "runtime/model/mapped_file.h"

namespace headrace {
namespace {

// Small models know the near past: SpecExtend's tables (section 4) are flat from 1K on. What a config calls the most
// positions is more than small-lm can use (measured on a novel: 25% of its guesses are right with 512 tokens to look
// back at, 24% with 1,024, 13% with 1,976).
constexpr int64_t kUsualWindow = 1024;
constexpr const char* kWants = "a draft needs its target's own tokenizer";

void check_sizes(const Checkpoint& draft, const ModelConfig& target) {
  const int64_t vocab = draft.config().vocab;
  if (vocab == target.vocab) return;
  throw_error(ExitCode::kBadInput, draft.path(),
              str("has a vocabulary of ", vocab, ", the target's vocabulary is ", target.vocab), kWants);
}

// Ids that one of the two does not name are padding (GGUF files name it, tokenizer.json files do not).
void check_tokens(const Checkpoint& draft, const Tokenizer& target) {
  const Tokenizer own = draft.load_tokenizer();
  for (int32_t id = 0; id < std::min(own.size(), target.size()); ++id) {
    if (own.token_name(id) == target.token_name(id)) continue;
    throw_error(ExitCode::kBadInput, draft.path(),
                str("has another tokenizer than the target: its token ", id, " is \"", printable(own.token_name(id)),
                    "\", the target's is \"", printable(target.token_name(id)), "\""),
                kWants);
  }
}

class SimpleModel final : public DraftModel {
 public:
  SimpleModel(const DraftOptions& options, const TreeShape& tree, Device& device, const SimpleTarget& target)
      : device_(device),
        tree_(tree),
        tunes_trees_(!options.tree),
        window_(options.window),
        checkpoint_(open_fitting(options.model, target)),
        config_(checkpoint_->config()),
        weights_(Weights::reserve(*checkpoint_, device, target.weights->dtype())) {
    if (options.rope_theta > 0) config_.rope.theta = options.rope_theta;
  }

  bool load(Progress* progress, const std::atomic<bool>* interrupt) override {
    return weights_.loaded() || weights_.load(*checkpoint_, device_, progress, interrupt);
  }
  bool loaded() const override { return weights_.loaded(); }
  uint64_t weights_bytes() const override { return weights_.bytes(); }
  uint64_t staging_bytes() const override { return weights_.staging_bytes(); }
  SpecType type() const override { return SpecType::kSimple; }
  TreeLimits tree() const override { return {.nodes = tree_.nodes, .levels = tree_.deepest()}; }
  bool tunes_trees() const override { return tunes_trees_; }

  std::unique_ptr<Draft> start(const DraftRun& run) override {
    const int64_t usual = usual_window(config_.max_positions, run.context_tokens, tree_.deepest());
    return std::make_unique<SimpleDraft>(device_, config_, weights_,
                                         DraftSetup{.tree = tree_,
                                                    .window = window_ >= 0 ? window_ : usual,
                                                    .prompt_tokens = run.prompt_tokens,
                                                    .context_tokens = run.context_tokens,
                                                    .sampling = run.sampling});
  }

  std::string describe() const override {
    const std::string window = window_ > 0    ? str("window ", window_)
                               : window_ == 0 ? std::string("no window")
                                              : str("a window of at most ", kUsualWindow);
    return str("draft-simple ", checkpoint_->path(), ", ", window, tunes_trees_ ? ", trees of up to " : ", trees of ",
               tree_.nodes);
  }

 private:
  // A draft without a tokenizer file (weights and a config, as small models trained for one target are shipped) is
  // taken to have its target's, if its vocabulary is as large.
  static std::unique_ptr<Checkpoint> open_fitting(const std::string& model, const SimpleTarget& target) {
    std::unique_ptr<Checkpoint> draft = open_checkpoint(model);
    check_sizes(*draft, *target.config);
    if (target.tokenizer != nullptr && draft->has_tokenizer()) check_tokens(*draft, *target.tokenizer);
    return draft;
  }

  Device& device_;
  const TreeShape tree_;
  const bool tunes_trees_;
  const int64_t window_;  // -1: what fits
  const std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;  // the checkpoint's, with the options in place
  Weights weights_;
};

}  // namespace

// From the deepest node to the first sink lie the window, the rows that it keeps until a tile can go, the sinks and the
// tree. A draft of very few positions gets the least window there is: it drafts badly, and nothing worse.
int64_t usual_window(int64_t max_positions, int64_t context_tokens, int64_t deepest) {
  if (context_tokens <= std::min(max_positions, kUsualWindow)) return 0;
  return std::clamp(max_positions - deepest - kPrefixTile - kDraftSinkRows, kLeastDraftWindow, kUsualWindow);
}

std::unique_ptr<DraftModel> open_simple(const DraftOptions& options, const TreeShape& tree, Device& device,
                                        const SimpleTarget& target) {
  return std::make_unique<SimpleModel>(options, tree, device, target);
}

}  // namespace headrace
