// A wrong candidate whose states overflow must not reach the right ones: with a draft that proposes such a token in
// each step, the text is that of plain decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/prefix/run.h"
#include "tests/support/overflowing_model.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::kOverflowingToken;
using testing_support::kOverflowingVocab;

struct OverflowRun {
  DeviceChoice device = DeviceChoice::kCpu;
  DType dtype = DType::kF32;
};

class Overflow : public ::testing::TestWithParam<OverflowRun> {
 protected:
  Overflow() {
    testing_support::write_overflowing_target(target_.path());
    testing_support::write_overflowing_draft(draft_.path());
  }
  EngineOptions options() const {
    EngineOptions options;
    options.model = target_.path();
    options.device = {.choice = GetParam().device, .threads = 2};
    options.want_tokenizer = false;
    options.dtype = testing::weights_type(GetParam().dtype);
    if (low_bit(GetParam().dtype)) options.cache_type_k = options.cache_type_v = GetParam().dtype;
    return options;
  }
  EngineOptions with_draft(const std::string& tree) const {
    EngineOptions with = options();
    with.draft.type = SpecType::kSimple;
    with.draft.model = draft_.path();
    with.draft.tree = parse_tree(tree);
    return with;
  }
  // Without the token.
  static std::vector<int32_t> prompt(int64_t tokens) {
    std::vector<int32_t> ids = testing::made_up_ids(tokens, kOverflowingVocab);
    static_assert(kOverflowingToken == 0);  // made_up_ids() begins at 3
    return ids;
  }

  const TemporaryFolder target_, draft_;
};

TEST_P(Overflow, OfACandidateDoesNotReachTheText) {
  Engine plain(options());
  const auto prompts = testing::kSanitized ? std::vector<int64_t>{318} : std::vector<int64_t>{37, 318, 700};
  for (const char* tree : {"chain:8", "eagle2:60,3,16", "beams:16,16"}) {
    Engine drafting(with_draft(tree));
    for (const int64_t tokens : prompts) {
      GenerateOptions run{.max_tokens = 60, .ignore_eos = true};
      run.verify = VerifyOptions{.mode = VerifyMode::kFull};
      const std::vector<int32_t> expected = plain.generate(prompt(tokens), run, nullptr).token_ids;
      ASSERT_EQ(std::count(expected.begin(), expected.end(), kOverflowingToken), 0) << "choose another prompt";
      EXPECT_EQ(drafting.generate(prompt(tokens), run, nullptr).token_ids, expected) << tree << " after " << tokens;
      run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64};
      const GenerateResult partial = drafting.generate(prompt(tokens), run, nullptr);
      EXPECT_EQ(partial.token_ids, expected) << tree << " after " << tokens << ", with partial steps";
    }
  }
}

// Rows that are not finite are not saved; those before them are.
TEST_P(Overflow, OfAPromptsTokenIsNotSaved) {
  constexpr int64_t kGroup = 512, kTokens = 1100, kBad = 700;
  const testing::LoadedModel model(target_.path(), GetParam().dtype, GetParam().device);
  const TemporaryFolder folder;
  PrefixStore store({.folder = folder.path()});
  std::vector<int32_t> ids = prompt(kTokens);
  for (const bool bad : {true, false}) {
    ids[kBad] = bad ? kOverflowingToken : 5;
    SessionOptions options = model.options(kTokens, 8);
    options.prefill_group = kGroup;
    PrefixRun run(
        store, {.shape = row_shape(model.checkpoint->config(), options.k_type, options.v_type, model.weights.dtype()),
                .identity = {},
                .model = "overflowing",
                .unit = model.device->backend() == Backend::kCpu ? 1 : kGroup,
                .draft = {},
                .prompt = ids});
    options.prefix = &run;
    PrefixUse use;
    {
      const std::unique_ptr<testing::Session> session = model.session(options);
      try {
        session->prefill(ids, nullptr, nullptr);
      } catch (const Error&) {  // the first token's logits are not finite either
        EXPECT_TRUE(bad);
      }
      run.finish(nullptr, nullptr, &use);
    }
    if (bad) {
      EXPECT_EQ(use.saved_rows, 512);
      ASSERT_EQ(use.notes.size(), 1u);
      EXPECT_NE(use.notes[0].find("tokens from 512 on are not saved"), std::string::npos) << use.notes[0];
    } else {
      EXPECT_EQ(use.rows, 512);
      EXPECT_GE(use.saved_rows, 1024);
      EXPECT_TRUE(use.notes.empty());
    }
  }
}

std::vector<OverflowRun> overflow_runs() {
  std::vector<OverflowRun> all;
  for (const DeviceChoice device : testing::session_devices()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8}) all.push_back({device, dtype});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, Overflow, ::testing::ValuesIn(overflow_runs()), [](const auto& instance) {
  return testing::device_name(instance.param.device) + "_" + dtype_name(instance.param.dtype);
});

}  // namespace
}  // namespace headrace
