#include "runtime/draft/open/open_draft.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "runtime/draft/cache.h"

namespace headrace {
namespace {

// The largest tree of --tree auto.
TreeShape largest_tree(Backend backend) { return eagle2_shape(backend == Backend::kCuda ? kMaxTreeNodes : 64, 7, 10); }

TreeShape tree_of(const DraftOptions& options, Backend backend) {
  const TreeShape shape = options.tree ? *options.tree : largest_tree(backend);
  const int64_t most = options.most_tokens;
  return most > 0 ? shape.within({.nodes = most + 1, .levels = most}) : shape;
}

constexpr const char* kNoWeights = "It looks up in the text itself and has no weights.";
constexpr const char* kOwnBlock = "It is a block of the model's own file, and rotates as the model does.";

// A requested option and the drafts that support it; null: not requested.
struct Asked {
  const char* flag;
  std::optional<std::string> value;
  std::initializer_list<SpecType> used_by;
  const char* hint;  // for a draft without support
};

std::optional<std::string> if_given(bool given, const std::string& value) {
  return given ? std::optional(value) : std::nullopt;
}

void check_use(SpecType type, const Asked& asked) {
  if (!asked.value || std::find(asked.used_by.begin(), asked.used_by.end(), type) != asked.used_by.end()) return;
  const std::string value = asked.value->empty() ? "" : *asked.value + " ";
  if (type == SpecType::kNone) {
    throw_error(ExitCode::kUsage, asked.flag, value + "has no effect without --spec-type",
                "Name the kind of draft, for example --spec-type draft-eagle3.");
  }
  throw_error(ExitCode::kUsage, asked.flag, str(value, "has no effect with --spec-type ", spec_type_name(type)),
              asked.hint);
}

void check_rope_use(const DraftOptions& options) {
  const RopeOverrides& rope = options.rope;
  const char* const hint = options.type == SpecType::kLongSpec
                               ? "It reads the target's keys, and rotates as the target does."
                           : options.type == SpecType::kMtp ? kOwnBlock
                                                            : kNoWeights;
  const auto check = [&](const char* flag, const std::optional<std::string>& value) {
    check_use(options.type, {flag, value, {SpecType::kEagle3, SpecType::kSimple}, hint});
  };
  check(kDraftRopeFlags.scaling,
        if_given(rope.scaling.has_value(), rope.scaling ? rope_scaling_name(*rope.scaling) : ""));
  check(kDraftRopeFlags.scale, if_given(rope.factor > 0, str(rope.factor)));
  check(kDraftRopeFlags.theta, if_given(rope.theta > 0, str(rope.theta)));
  check(kDraftRopeFlags.original, if_given(rope.original_positions > 0, str(rope.original_positions)));
}

void check_options(const DraftOptions& options) {
  constexpr SpecType kEagle3 = SpecType::kEagle3, kLongSpec = SpecType::kLongSpec, kSimple = SpecType::kSimple,
                     kNgram = SpecType::kNgram, kMtp = SpecType::kMtp;
  check_use(options.type,
            {"--model-draft",
             if_given(!options.model.empty(), options.model),
             {kEagle3, kLongSpec, kSimple},
             options.type == kMtp ? "It is a block of the model's own file: leave -md out." : kNoWeights});
  check_use(options.type, {"--tree",
                           if_given(options.tree.has_value(), ""),
                           {kEagle3, kLongSpec, kSimple, kMtp},
                           "Its trees are what it finds; --spec-draft-n-max N limits them."});
  check_use(options.type, {"--spec-draft-n-max",
                           if_given(options.most_tokens > 0, str(options.most_tokens)),
                           {kEagle3, kLongSpec, kSimple, kNgram, kMtp},
                           ""});
  check_use(options.type, {"--draft-window",
                           if_given(options.window >= 0, str(options.window)),
                           {kEagle3, kLongSpec, kSimple, kMtp},
                           kNoWeights});
  check_use(options.type, {"--draft-cache",
                           if_given(options.retrieval.has_value(), "retrieval"),
                           {kEagle3, kSimple},
                           options.type == kLongSpec ? "It reads all of the target's last layer."
                           : options.type == kMtp    ? "It has a window: --draft-window."
                                                     : kNoWeights});
  check_rope_use(options);
  if (options.retrieval && options.window == 0) {
    throw_error(ExitCode::kUsage, "--draft-cache", "retrieval has no effect with --draft-window 0",
                "The draft attends to the whole context then.");
  }
  if (options.window > 0 && options.window < kMinDraftWindow) {
    throw_error(ExitCode::kUsage, "--draft-window",
                str(options.window, " is too small: at least ", kMinDraftWindow, ", or 0 for the whole context"));
  }
  const bool has_files = options.type == kEagle3 || options.type == kLongSpec || options.type == kSimple;
  if (has_files && options.model.empty()) {
    throw_error(ExitCode::kUsage, "--spec-type", str(spec_type_name(options.type), " needs a draft: -md PATH"));
  }
}

// Some drafts read the rows of the target's last layer. With a window it keeps the last ones alone.
void check_last_layer(const DraftOptions& options, const ModelConfig& target) {
  const bool longspec = options.type == SpecType::kLongSpec;
  const LayerSpec& last = target.layers.back();
  if ((!longspec && !options.retrieval) || !last.has_attention() || last.attention().window == 0) return;
  throw_error(ExitCode::kUsage, longspec ? "--spec-type" : "--draft-cache",
              str(longspec ? "draft-longspec" : "retrieval",
                  " reads all rows of the model's last layer, which has a window and does not keep them"));
}

std::unique_ptr<DraftModel> open_one(const DraftOptions& options, Device& device, const DraftTarget& target) {
  const TreeShape tree = tree_of(options, device.backend());
  check_last_layer(options, *target.config);
  if (options.type == SpecType::kLongSpec || options.type == SpecType::kSimple) {  // they rank the target's tokens
    check_branches(tree, target.config->vocab, options.model);
  }
  if (options.type == SpecType::kMtp) check_branches(tree, target.config->vocab, "the MTP block");
  switch (options.type) {
    case SpecType::kNone:
      return nullptr;
    case SpecType::kEagle3:
      return open_eagle3_draft(options, tree, device, target);
    case SpecType::kLongSpec:
      return open_longspec_draft(options, tree, device, target);
    case SpecType::kSimple:
      return open_simple_draft(options, tree, device, target);
    case SpecType::kNgram:
      return open_ngram_draft(options, device);
    case SpecType::kMtp:
      return open_mtp_draft(options, tree, device, target);
    case SpecType::kAuto:
      break;
  }
  CHECK(false, "spec_type=", static_cast<int>(options.type));
  return nullptr;  // without optimization the compiler does not see that this is unreachable
}

}  // namespace

SpecType chosen_type(const DraftOptions& options, const ModelConfig& config, const std::string& model) {
  const bool has_block = config.mtp.has_value();
  if (options.type == SpecType::kAuto) {
    const bool usable = has_block && options.model.empty() && config.vocab <= kMaxTopVocab;
    return usable ? SpecType::kMtp : SpecType::kNone;
  }
  if (options.type != SpecType::kMtp || has_block) return options.type;
  throw_error(ExitCode::kBadInput, model, "has no MTP block, which --spec-type draft-mtp needs",
              "Its tensors are mtp.*, in GGUF those of the last block with nextn.*; some conversions drop them. Name "
              "another kind of draft, or leave --spec-type out.");
}

std::unique_ptr<DraftModel> open_draft(const DraftOptions& options, Device& device, const ModelConfig& config,
                                       const Weights& target, const Tokenizer* tokenizer) {
  check_options(options);
  std::unique_ptr<DraftModel> draft = open_one(options, device, {&config, &target, tokenizer});
  if (!options.look_up) return draft;
  CHECK(draft != nullptr && options.type != SpecType::kNgram, "look-up beside ", spec_type_name(options.type));
  return pair_with_look_up(std::move(draft), open_ngram_draft(options, device));
}

}  // namespace headrace
