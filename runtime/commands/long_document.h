// A document that is longer than the context: parts are answered one after another, then their answers together, as
// often as needed. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/engine/result.h"
#include "runtime/text/document.h"

namespace headrace {

// `last`: the answer is the document's; otherwise it is that of part `part` of `parts`.
struct PartLabel {
  bool last = true;
  int64_t level = 0, part = 0, parts = 0;  // from 1; only level 1 reads the document itself
};
using AnswerPrompt = std::function<GenerateResult(const std::vector<int32_t>& ids, const PartLabel& label)>;

// Returns one answer if the prompt fits. Otherwise returns the answer to the answers of the parts, with the parts in
// GenerateResult::parts. If a part is interrupted, its result is returned. Throws Error(kBadInput) that names `file` if
// the context does not hold the instruction and one character, or if the answers do not get shorter.
GenerateResult answer_long(const std::string& file, const std::string& text, const PromptRules& rules,
                           const EncodePrompt& encode, const AnswerPrompt& answer);

}  // namespace headrace
