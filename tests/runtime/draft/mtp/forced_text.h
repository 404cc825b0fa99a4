// A text whose tokens are given, with a draft that guesses at each place and is never followed: what it would have
// proposed there, and how likely it takes each token to be. At each place one question, then add(). One thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/draft/open/open_draft.h"
#include "tests/support/session_fixture.h"

namespace headrace::testing {

class ForcedText {
 public:
  // The first `prompt` tokens of `text` are prefilled. `on` must outlive this.
  ForcedText(const LoadedModel& on, const DraftOptions& options, const std::vector<int32_t>& text, int64_t prompt,
             int64_t more, const SamplingSettings& sampling = {})
      : model_(open_draft(options, *on.device, on.checkpoint->config(), on.weights)) {
    model_->load(nullptr, nullptr);
    SessionOptions run = on.options(prompt, more + model_->tree().levels);
    run.sampling = sampling;
    run.pass_rows = model_->tree().nodes;
    draft_ = model_->start(
        {.prompt_tokens = run.prompt_tokens, .context_tokens = run.context_tokens, .sampling = run.sampling});
    run.draft = draft_.get();
    session_ = on.session(run);
    sample_ = *session_->prefill({text.data(), static_cast<size_t>(prompt)}, nullptr, nullptr);
  }

  int32_t sample() const { return sample_; }  // the target's after the text so far
  // The guesses after `token`, which follows the text, down to `levels`.
  std::vector<int32_t> guesses(int32_t token, int64_t levels) {
    Tree tree;
    draft_->propose(token, session_->rows(), {.nodes = levels + 1, .levels = levels}, &tree);
    return {tree.tokens.begin() + 1, tree.tokens.end()};
  }
  // Of the token after `token`, of all of the vocabulary.
  std::vector<float> log_probs(int32_t token, int64_t vocab) {
    guesses(token, 1);
    std::vector<float> all;
    for (int64_t id = 0; id < vocab; ++id) {
      all.push_back(static_cast<float>(draft_->rank(static_cast<int32_t>(id))->log_prob));
    }
    return all;
  }
  // The text goes on with `token`.
  void add(int32_t token) {
    Tree tree;
    tree.reset(token);
    sample_ = session_->verify(tree)[0];
    const Acceptance alone{.nodes = {0}, .next = sample_};
    session_->commit(alone);
    draft_->observe(tree, alone);
  }

 private:
  std::unique_ptr<DraftModel> model_;
  std::unique_ptr<Draft> draft_;
  std::unique_ptr<Session> session_;
  int32_t sample_ = 0;
};

}  // namespace headrace::testing
