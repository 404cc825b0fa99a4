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

// `last`: the answer is that of the document; else of a part, `part` of `parts`.
struct PartLabel {
  bool last = true;
  int64_t level = 0, part = 0, parts = 0;  // from 1; of levels only the first reads the document itself
};
using AnswerPrompt = std::function<GenerateResult(const std::vector<int32_t>& ids, const PartLabel& label)>;

// One answer if the prompt fits. Otherwise the answer to the answers of the parts, with the parts in
// GenerateResult::parts. An interrupted part ends it: its result is returned. Throws Error(kBadInput) that names
// `file`: the context does not hold the instruction and one character, or the answers do not get shorter.
GenerateResult answer_long(const std::string& file, const std::string& text, const PromptRules& rules,
                           const EncodePrompt& encode, const AnswerPrompt& answer);

}  // namespace headrace
