#include "runtime/draft/draft_model.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "runtime/draft/draft_tokenizer.h"
#include "runtime/draft/eagle3.h"
#include "runtime/draft/longspec_model.h"
#include "runtime/draft/ngram_draft.h"
#include "runtime/draft/simple_model.h"

namespace headrace {
namespace {

// The largest that --tree auto may take.
TreeShape largest_tree(Backend backend) { return eagle2_shape(backend == Backend::kCuda ? kMaxTreeNodes : 64, 7, 10); }

TreeShape tree_of(const DraftOptions& options, Backend backend) {
  const TreeShape shape = options.tree ? *options.tree : largest_tree(backend);
  const int64_t most = options.most_tokens;
  if (most > 0) return shape.within({.nodes = most + 1, .levels = most});
  return backend == Backend::kCuda ? shape.cut_to(nodes_that_pay(shape.nodes)) : shape;
}

// A node's children are ranked: there must be so many tokens.
void check_branches(const TreeShape& tree, int64_t vocab, const std::string& draft) {
  if (vocab > kMaxTopVocab) {
    throw_error(ExitCode::kBadInput, draft,
                str("has a vocabulary of ", vocab, ": more than the ", kMaxTopVocab, " that a draft's trees rank"));
  }
  for (const TreeLevel& level : tree.levels) {
    if (level.branch <= vocab) continue;
    throw_error(ExitCode::kUsage, "--tree",
                str("ranks ", level.branch, " tokens after each, ", draft, " knows ", vocab));
  }
}

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
  Eagle3Model(const DraftOptions& options, Device& device, const ModelConfig& config, const Weights& target,
              const Tokenizer* tokenizer)
      : device_(device),
        target_(target),
        tree_(tree_of(options, device.backend())),
        tunes_trees_(!options.tree),
        checkpoint_(open_eagle3(options.model, config)),
        config_(checkpoint_->config()),
        weights_(Eagle3Weights::reserve(*checkpoint_, device, target.dtype())) {
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

class NgramModel final : public DraftModel {
 public:
  NgramModel(const DraftOptions& options, Device& device) : device_(device) {
    // What a row more costs decides how unlikely a guess may be.
    if (device.backend() == Backend::kCuda) limits_ = {.nodes = 64, .depth = 16, .likelihood = 0.02};
    if (options.most_tokens > 0) limits_.nodes = std::min(limits_.nodes, options.most_tokens + 1);
  }

  bool load(Progress*, const std::atomic<bool>*) override { return true; }
  bool loaded() const override { return true; }
  uint64_t weights_bytes() const override { return 0; }
  SpecType type() const override { return SpecType::kNgram; }
  TreeLimits tree() const override { return {.nodes = limits_.nodes, .levels = limits_.depth}; }
  bool tunes_trees() const override { return false; }  // a tree is as large as what was found
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<NgramDraft>(device_, limits_, run.context_tokens);
  }
  std::string describe() const override { return str("ngram-simple, trees of at most ", limits_.nodes); }

 private:
  Device& device_;
  NgramLimits limits_;
};

// What was asked for and what it is of use with; null: not asked for.
struct Asked {
  const char* flag;
  std::optional<std::string> value;
  std::initializer_list<SpecType> used_by;
  const char* hint;  // where it is of no use with a draft
};

std::optional<std::string> if_given(bool given, const std::string& value) {
  return given ? std::optional(value) : std::nullopt;
}

void check_use(SpecType type, const Asked& asked) {
  if (!asked.value || std::find(asked.used_by.begin(), asked.used_by.end(), type) != asked.used_by.end()) return;
  const std::string value = asked.value->empty() ? "" : *asked.value + " ";
  if (type == SpecType::kNone) {
    throw_error(ExitCode::kUsage, asked.flag, value + "is of no use without --spec-type",
                "Say which kind of draft it is for: --spec-type draft-eagle3.");
  }
  throw_error(ExitCode::kUsage, asked.flag, str(value, "is of no use with --spec-type ", spec_type_name(type)),
              asked.hint);
}

void check_options(const DraftOptions& options) {
  constexpr SpecType kEagle3 = SpecType::kEagle3, kLongSpec = SpecType::kLongSpec, kSimple = SpecType::kSimple,
                     kNgram = SpecType::kNgram;
  constexpr const char* kNoWeights = "It looks up in the text itself and has no weights.";
  check_use(
      options.type,
      {"--model-draft", if_given(!options.model.empty(), options.model), {kEagle3, kLongSpec, kSimple}, kNoWeights});
  check_use(options.type, {"--tree",
                           if_given(options.tree.has_value(), ""),
                           {kEagle3, kLongSpec, kSimple},
                           "Its trees are what it finds; --spec-draft-n-max N limits them."});
  check_use(options.type, {"--spec-draft-n-max",
                           if_given(options.most_tokens > 0, str(options.most_tokens)),
                           {kEagle3, kLongSpec, kSimple, kNgram},
                           ""});
  check_use(options.type, {"--draft-window",
                           if_given(options.window >= 0, str(options.window)),
                           {kEagle3, kLongSpec, kSimple},
                           kNoWeights});
  check_use(options.type,
            {"--draft-rope-theta",
             if_given(options.rope_theta > 0, str(options.rope_theta)),
             {kEagle3, kSimple},
             options.type == kLongSpec ? "It reads the target's keys, and rotates as the target does." : kNoWeights});
  if (options.window > 0 && options.window < kLeastDraftWindow) {
    throw_error(ExitCode::kUsage, "--draft-window",
                str(options.window, " is too small: at least ", kLeastDraftWindow, ", or 0 for the whole context"));
  }
  if (options.type != SpecType::kNone && options.type != kNgram && options.model.empty()) {
    throw_error(ExitCode::kUsage, "--spec-type", str(spec_type_name(options.type), " needs a draft: -md PATH"));
  }
}

}  // namespace

const char* spec_type_name(SpecType type) {
  switch (type) {
    case SpecType::kNone:
      return "none";
    case SpecType::kEagle3:
      return "draft-eagle3";
    case SpecType::kLongSpec:
      return "draft-longspec";
    case SpecType::kSimple:
      return "draft-simple";
    case SpecType::kNgram:
      return "ngram-simple";
  }
  return "?";
}

std::unique_ptr<DraftModel> open_draft(const DraftOptions& options, Device& device, const ModelConfig& config,
                                       const Weights& target, const Tokenizer* tokenizer) {
  check_options(options);
  const TreeShape tree = tree_of(options, device.backend());
  if (options.type == SpecType::kLongSpec || options.type == SpecType::kSimple) {  // they rank the target's tokens
    check_branches(tree, config.vocab, options.model);
  }
  switch (options.type) {
    case SpecType::kNone:
      return nullptr;
    case SpecType::kEagle3:
      return std::make_unique<Eagle3Model>(options, device, config, target, tokenizer);
    case SpecType::kLongSpec:
      return open_longspec_draft(options, tree, device, {&config, &target}, tokenizer);
    case SpecType::kSimple:
      return open_simple(options, tree, device, {&config, &target, tokenizer});
    case SpecType::kNgram:
      return std::make_unique<NgramModel>(options, device);
  }
  CHECK(false, "spec_type=", static_cast<int>(options.type));
  return nullptr;  // without optimization the compiler does not see that it never comes here
}

}  // namespace headrace
