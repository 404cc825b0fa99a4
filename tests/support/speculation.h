// The engine's decoding loop with a draft, for the tests of drafts.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/draft/draft_model.h"
#include "tests/support/session_fixture.h"

namespace headrace::testing {

struct Speculated {
  std::vector<int32_t> tokens;
  int64_t steps = 0, accepted = 0;

  double tau() const { return static_cast<double>(accepted) / static_cast<double>(steps); }
};

// `count` tokens after the prompt. `run` is for a plain run; the draft's needs are added here.
inline Speculated speculate(const LoadedModel& model, DraftModel& draft_model, SessionOptions run,
                            const std::vector<int32_t>& prompt, int64_t count) {
  draft_model.load(nullptr, nullptr);
  const TreeLimits limits = draft_model.tree();
  run.context_tokens += limits.levels;
  const std::unique_ptr<Draft> draft = draft_model.start(
      {.prompt_tokens = run.prompt_tokens, .context_tokens = run.context_tokens, .sampling = run.sampling});
  run.pass_rows = limits.nodes;
  run.draft = draft.get();
  const std::unique_ptr<Session> session = model.session(run);
  Speculated result;
  result.tokens = {*session->prefill(prompt, nullptr, nullptr)};
  Tree tree;
  Acceptance acceptance;
  for (; static_cast<int64_t>(result.tokens.size()) < count; ++result.steps) {
    ProposedTree proposed;  // alternates between propose() and propose_into()
    if (result.steps % 2 == 0) {
      proposed =
          draft->propose_into(result.tokens.back(), session->rows(), limits, session->tree_inputs(StepMode::kFull));
    }
    if (proposed.nodes > 0) {
      session->verify(proposed, StepMode::kFull, &tree, &acceptance);
    } else {
      draft->propose(result.tokens.back(), session->rows(), limits, &tree);
      accept(tree, session->verify(tree), &acceptance);
    }
    session->commit(acceptance);
    draft->observe(tree, acceptance);
    result.accepted += static_cast<int64_t>(acceptance.nodes.size()) - 1;
    for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
      result.tokens.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
    }
    result.tokens.push_back(acceptance.next);
  }
  result.tokens.resize(static_cast<size_t>(count));
  return result;
}

}  // namespace headrace::testing
