// The EAGLE-3 head on SmolLM2-64K against the reference implementation's whole tree, node for node, in f32
// (tests/data/eagle3). HEADRACE_TEST_SMOLLM2_64K names the target.
#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/draft/draft_model.h"
#include "runtime/draft/open/open_draft.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

class Eagle3Golden : public ::testing::TestWithParam<std::tuple<DeviceChoice, bool>> {};  // bool: judged on the device

TEST_P(Eagle3Golden, OneWholeTree) {
  const char* const directory = std::getenv("HEADRACE_TEST_SMOLLM2_64K");
  if (directory == nullptr) GTEST_SKIP() << "HEADRACE_TEST_SMOLLM2_64K names no model";
  const testing::LoadedModel model(directory, DType::kF32, std::get<0>(GetParam()));
  const testing::Golden golden = testing::read_golden(HEADRACE_TEST_DATA "/eagle3/golden/tree.safetensors");
  const std::vector<int32_t> ids = golden.ids("input_ids");
  const DraftOptions options = {
      .type = SpecType::kEagle3, .model = HEADRACE_TEST_DATA "/eagle3", .tree = eagle2_shape(60, 7, 10)};
  const auto draft_model = open_draft(options, *model.device, model.checkpoint->config(), model.weights);
  draft_model->load(nullptr, nullptr);
  SessionOptions run = model.options(static_cast<int64_t>(ids.size()), 100);
  const auto draft = draft_model->start({.prompt_tokens = run.prompt_tokens, .context_tokens = run.context_tokens});
  run.pass_rows = draft_model->tree().nodes;
  run.draft = draft.get();
  const auto session = model.session(run);
  const std::optional<int32_t> root = session->prefill(ids, nullptr, nullptr);
  ASSERT_EQ(*root, golden.ids("root")[0]);

  Tree tree;
  Acceptance acceptance;
  if (std::get<1>(GetParam())) {
    const ProposedTree proposed =
        draft->propose_into(*root, session->rows(), {}, session->tree_inputs(StepMode::kFull));
    ASSERT_EQ(proposed.nodes, 60);
    session->verify(proposed, StepMode::kFull, &tree, &acceptance);
  } else {
    draft->propose(*root, session->rows(), {}, &tree);
    accept(tree, session->verify(tree), &acceptance);
  }
  EXPECT_EQ(tree.tokens, golden.ids("tree_tokens"));
  EXPECT_EQ(tree.parents, golden.ids("tree_parents"));
  // What the target says of it is its own text.
  const std::vector<int32_t> greedy = golden.ids("greedy");
  for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
    EXPECT_EQ(tree.tokens[static_cast<size_t>(acceptance.nodes[i])], greedy[i]);
  }
  EXPECT_EQ(acceptance.next, greedy[acceptance.nodes.size()]);
}

INSTANTIATE_TEST_SUITE_P(Devices, Eagle3Golden,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()), ::testing::Bool()),
                         [](const auto& given) {
                           return testing::device_name(std::get<0>(given.param)) +
                                  (std::get<1>(given.param) ? "_on_device" : "_by_the_host");
                         });

}  // namespace
}  // namespace headrace
