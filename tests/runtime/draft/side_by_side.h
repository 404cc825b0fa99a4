// Two runs with the same draft: the trees of one pass through the host, those of the other stay on the device.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "runtime/draft/draft_model.h"
#include "runtime/session/executor.h"
#include "runtime/speculation/accept.h"
#include "tests/offload/device/gate.h"
#include "tests/support/session_fixture.h"

namespace headrace::testing {

class SideBySide {
 public:
  struct Step {
    Tree tree;
    Acceptance acceptance;
    std::vector<int32_t> samples;
    bool operator==(const Step& other) const {
      return tree.tokens == other.tree.tokens && tree.parents == other.tree.parents &&
             tree.depths == other.tree.depths && tree.scores == other.tree.scores && samples == other.samples &&
             acceptance.nodes == other.acceptance.nodes && acceptance.next == other.acceptance.next;
    }
  };

  SideBySide(const LoadedModel& on, DraftModel* model, SessionOptions options) : on_(on), limits_(model->tree()) {
    options.context_tokens += limits_.levels;
    options.pass_rows = limits_.nodes;
    options.partial.shape.blocks = 4;
    model->load(nullptr, nullptr);
    for (size_t i = 0; i < 2; ++i) {
      drafts_[i] = model->start({.prompt_tokens = options.prompt_tokens,
                                 .context_tokens = options.context_tokens,
                                 .most_pending = kMaxPending,
                                 .sampling = options.sampling});
      options.draft = drafts_[i].get();
      sessions_[i] = on.session(options);
    }
  }
  int32_t prefill(const std::vector<int32_t>& prompt) {
    sessions_[1]->prefill(prompt, nullptr, nullptr);
    return *sessions_[0]->prefill(prompt, nullptr, nullptr);
  }
  Session& on_device() { return *sessions_[1]; }

  Step through_the_host(int32_t root, StepMode mode) {
    Step step;
    step.tree.reset(root);
    drafts_[0]->propose(root, position(mode), limits_, &step.tree);
    const std::span<const int32_t> samples = sessions_[0]->verify(step.tree, mode);
    step.samples.assign(samples.begin(), samples.end());
    accept(step.tree, samples, &step.acceptance);
    return step;
  }
  // `held`: the stream stands still until the target's pass, too, is about to be enqueued.
  Step on_the_device(int32_t root, StepMode mode, bool held) {
    Step step;
    Gate gate(*on_.device, std::chrono::seconds(10));
    const auto before = std::chrono::steady_clock::now();
    if (held) gate.hold(*on_.compute);
    const ProposedTree proposed =
        drafts_[1]->propose_into(root, position(mode), limits_, sessions_[1]->tree_inputs(mode));
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(9)) << "it waited for the stream";
    gate.open();
    EXPECT_EQ(proposed.nodes, limits_.nodes);
    const std::span<const int32_t> samples = sessions_[1]->verify(proposed, mode, &step.tree, &step.acceptance);
    step.samples.assign(samples.begin(), samples.end());
    return step;
  }
  void commit(const Step& step) {
    for (size_t i = 0; i < 2; ++i) {
      sessions_[i]->commit(step.acceptance);
      drafts_[i]->observe(step.tree, step.acceptance);
    }
  }

 private:
  int64_t position(StepMode mode) const {
    return sessions_[0]->rows() + (mode == StepMode::kPartial ? sessions_[0]->pending_rows() : 0);
  }

  const LoadedModel& on_;
  const TreeLimits limits_;
  std::unique_ptr<Draft> drafts_[2];
  std::unique_ptr<Session> sessions_[2];
};

}  // namespace headrace::testing
