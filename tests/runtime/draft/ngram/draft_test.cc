// Look-up as a draft: the text is that of plain decoding, and comes in fewer passes.
#include <gtest/gtest.h>

#include "runtime/draft/draft_model.h"
#include "runtime/draft/open/open_draft.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;

constexpr int64_t kTokens = 96;

class NgramText : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  std::vector<int32_t> speculate(const DraftOptions& options, SessionOptions run, int64_t* passes) {
    const auto draft_model = open_draft(options, *model_.device, model_.checkpoint->config(), model_.weights);
    EXPECT_TRUE(draft_model->loaded());
    run.context_tokens += draft_model->tree().levels;
    const auto draft = draft_model->start(
        {.prompt_tokens = run.prompt_tokens, .context_tokens = run.context_tokens, .sampling = run.sampling});
    run.pass_rows = draft_model->tree().nodes;
    run.draft = draft.get();
    const auto session = model_.session(run);
    std::vector<int32_t> tokens = {*session->prefill(prompt_, nullptr, nullptr)};
    Tree tree;
    Acceptance acceptance;
    for (; tokens.size() < kTokens; ++*passes) {
      draft->propose(tokens.back(), session->rows(), {}, &tree);
      accept(tree, session->verify(tree), &acceptance);
      session->commit(acceptance);
      draft->observe(tree, acceptance);
      for (size_t i = 1; i < acceptance.nodes.size(); ++i)
        tokens.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
      tokens.push_back(acceptance.next);
    }
    tokens.resize(kTokens);
    return tokens;
  }

  const LoadedModel model_{testing::tiny_model("qwen3"), DType::kF32, GetParam()};
  const std::vector<int32_t> prompt_ = testing::made_up_ids(480, 512);
};

TEST_P(NgramText, IsThatOfPlainDecoding) {
  DraftOptions options, narrow;
  options.type = narrow.type = SpecType::kNgram;
  narrow.most_tokens = 1;
  for (const float temperature : {0.0f, 0.3f}) {
    SessionOptions run = model_.options(static_cast<int64_t>(prompt_.size()), kTokens);
    run.sampling = {.temperature = temperature, .seed = 5};
    const std::vector<int32_t> plain = testing::decode_plainly(*model_.session(run), prompt_, kTokens);
    for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
      run.kv = kv;
      int64_t passes = 0;
      EXPECT_EQ(speculate(options, run, &passes), plain) << "temperature " << temperature;
      if (temperature == 0) {
        EXPECT_LT(passes, kTokens * 3 / 4);  // a small random model says the same again and again
      }
      passes = 0;
      EXPECT_EQ(speculate(narrow, run, &passes), plain);
    }
  }
}

// The text and its chains are host memory like any other.
TEST_P(NgramText, ItsIndexCountsAgainstTheHostsBudget) {
  DraftOptions options;
  options.type = SpecType::kNgram;
  const auto draft_model = open_draft(options, *model_.device, model_.checkpoint->config(), model_.weights);
  const MemoryBudget& host = model_.device->host_mem();
  const uint64_t before = host.used_bytes();
  {
    const auto draft = draft_model->start({.prompt_tokens = 100, .context_tokens = 100'000});
    const uint64_t said = draft->memory().pinned_bytes;
    EXPECT_GE(said, 4u * (100'000 + 3 * (131'072 + 100'000)));
    EXPECT_EQ(host.used_bytes(), before);
    draft->allocate(*model_.compute);
    EXPECT_EQ(host.used_bytes(), before + said);
  }
  EXPECT_EQ(host.used_bytes(), before);
  SessionOptions run = model_.options(100, 50);
  const uint64_t plain = model_.session(run)->plan().host_total_bytes;
  const auto draft = draft_model->start({.prompt_tokens = 100, .context_tokens = 150});
  run.draft = draft.get();
  EXPECT_GE(model_.session(run)->plan().host_total_bytes, plain + draft->memory().pinned_bytes);
}

INSTANTIATE_TEST_SUITE_P(Devices, NgramText, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

}  // namespace
}  // namespace headrace
