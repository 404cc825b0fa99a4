// A conversation of made-up tokens, each turn of which a run answers: for tests of rows that runs keep.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"

namespace headrace::testing {

struct Turns {
  std::vector<std::vector<int32_t>> prompts, answers;
  std::vector<int64_t> kept;  // tokens of each prompt that were not computed
  bool operator==(const Turns& other) const { return answers == other.answers && kept == other.kept; }
};

// A document of `document` tokens and a question; two more, the second long enough to seal segments; a question that
// begins anew after the document's first half; and one that goes on after it. Adds the accepted tokens to `accepted`.
inline Turns talk(Engine& engine, const GenerateOptions& run, int64_t document = 1000, int64_t* accepted = nullptr) {
  const auto vocab = static_cast<int32_t>(engine.config().vocab);
  Turns turns;
  std::vector<int32_t> text = made_up_ids(document, vocab);
  for (const int64_t more : {30, 21, 600, -1, 40}) {
    if (more < 0) text.resize(static_cast<size_t>(document / 2));
    const std::vector<int32_t> question = made_up_ids(more < 0 ? 25 : more, vocab, static_cast<uint32_t>(more + 100));
    text.insert(text.end(), question.begin(), question.end());
    const GenerateResult result = engine.generate(text, run, nullptr);
    turns.prompts.push_back(text);
    turns.answers.push_back(result.token_ids);
    turns.kept.push_back(result.kept_tokens);
    if (accepted != nullptr) *accepted += result.speculation.accepted;
    text.insert(text.end(), result.token_ids.begin(), result.token_ids.end());
  }
  return turns;
}

}  // namespace headrace::testing
