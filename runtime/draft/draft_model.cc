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
  constexpr const char* kNames[] = {"none",      "draft-eagle3", "draft-longspec", "draft-simple", "ngram-simple",
                                    "draft-mtp", "auto"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace headrace
