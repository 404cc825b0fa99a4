#include "runtime/draft/draft_model.h"

namespace headrace {

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

}  // namespace headrace
