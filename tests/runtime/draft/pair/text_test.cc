// A head and look-up as one draft: fewer passes than the head alone where the text repeats itself, and its memory is
// counted. That the text stays the same is in every_draft_test.
#include <gtest/gtest.h>

#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

using testing::LoadedModel;

class PairText : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  void SetUp() override { testing_support::tiny_eagle3_head().write(folder_.path()); }

  DraftOptions draft(bool look_up) const {
    DraftOptions options;
    options.type = SpecType::kEagle3;
    options.model = folder_.path();
    options.look_up = look_up;
    options.tree = parse_tree("eagle2:16,4,6");
    return options;
  }

  const TemporaryFolder folder_;
};

TEST_P(PairText, ComesInFewerPassesThanByTheHeadAlone) {
  const std::vector<int32_t> prompt = testing::made_up_ids(480, 512);
  const auto generate = [&](bool look_up) {
    EngineOptions options;
    options.model = testing::tiny_model("llama31");
    options.device = {.choice = GetParam(), .threads = 2};
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    options.draft = draft(look_up);
    Engine engine(options);
    GenerateOptions run{.max_tokens = 128, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return engine.generate(prompt, run, nullptr);
  };
  const GenerateResult head = generate(false), pair = generate(true);
  EXPECT_EQ(pair.token_ids, head.token_ids);
  EXPECT_EQ(head.speculation.type, "draft-eagle3");
  EXPECT_EQ(pair.speculation.type, "draft-eagle3,ngram-simple");
  EXPECT_LT(pair.speculation.steps, head.speculation.steps * 9 / 10);  // a small random model repeats itself
}

TEST_P(PairText, TakesTheMemoryOfBoth) {
  const LoadedModel model(testing::tiny_model("llama31"), DType::kF32, GetParam());
  const auto memory = [&](const DraftOptions& options) {
    const auto opened = open_draft(options, *model.device, model.checkpoint->config(), model.weights);
    return opened->start({.prompt_tokens = 1000, .context_tokens = 5000})->memory();
  };
  DraftOptions look_up;
  look_up.type = SpecType::kNgram;
  const DraftMemory head = memory(draft(false)), pair = memory(draft(true)), alone = memory(look_up);
  EXPECT_GT(alone.pinned_bytes, 0u);
  EXPECT_EQ(pair.pinned_bytes, head.pinned_bytes + alone.pinned_bytes);
  EXPECT_EQ(pair.lasting_bytes, head.lasting_bytes);
  EXPECT_EQ(pair.prefill_bytes, head.prefill_bytes);
}

INSTANTIATE_TEST_SUITE_P(Devices, PairText, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

}  // namespace
}  // namespace headrace
