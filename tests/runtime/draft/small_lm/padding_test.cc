// Vocabularies of one family that differ by padding (Qwen2.5: 151,936 and 152,064 ids for one tokenizer): the smaller
// model drafts, and what only one of the two has an id for is never proposed.
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/draft/open/open_draft.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/hf_directory.h"
#include "tests/support/refusal.h"
#include "tests/support/speculation.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

constexpr int64_t kNamed = 2001, kLess = 2048, kMore = 2304;  // tokens with a name, and two ways to pad them

// Made-up weights that go by place: models of one seed differ in their padding alone.
std::string write_model(const TemporaryFolder& folder, int64_t vocab) {
  ModelConfig c;
  c.family = "llama";
  c.hidden = 48, c.vocab = vocab, c.max_positions = 1024;
  c.layers = same_layers(2, {.mixer = AttentionSpec{.heads = 3, .kv_heads = 1, .head_dim = 16}, .ffn = {64}});
  write_hf_directory(*make_random_checkpoint("padded", c, 1), DType::kF32, folder.path());
  std::ifstream tokenizer(HEADRACE_TEST_DATA "/tokenizers/gpt2.tokenizer.json");
  folder.write("tokenizer.json", std::string{std::istreambuf_iterator<char>(tokenizer), {}});
  return folder.path();
}

class SimplePadding : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static DraftOptions options(const std::string& draft, const char* tree) {
    return {.type = SpecType::kSimple, .model = draft, .tree = parse_tree(tree)};
  }
  // Text of the target at a temperature at which padding is said as well, by either kind of tree.
  void expect_exact(int64_t target_vocab, int64_t draft_vocab) {
    const TemporaryFolder target_folder, draft_folder;
    const testing::LoadedModel target(write_model(target_folder, target_vocab), DType::kF32, GetParam());
    const std::string draft = write_model(draft_folder, draft_vocab);
    const Tokenizer tokenizer = target.checkpoint->load_tokenizer();
    ASSERT_EQ(tokenizer.size(), kNamed);
    const std::vector<int32_t> prompt = testing::made_up_ids(70, static_cast<int32_t>(kLess));
    int64_t beyond = 0;
    for (const float temperature : {0.0f, 1.0f}) {
      SessionOptions run = target.options(70, 150);
      run.sampling = {.temperature = temperature, .seed = 9};
      const std::vector<int32_t> plain = testing::decode_plainly(*target.session(run), prompt, 150);
      beyond += std::count_if(plain.begin(), plain.end(), [&](int32_t id) { return id >= draft_vocab; });
      for (const char* tree : {"chain:3", "eagle2:20,3,5"}) {
        const auto model =
            open_draft(options(draft, tree), *target.device, target.checkpoint->config(), target.weights, &tokenizer);
        const testing::Speculated said = testing::speculate(target, *model, run, prompt, 150);
        EXPECT_EQ(said.tokens, plain) << tree << ", temperature " << temperature;
        // Where the target said padding, the draft read something else from there on.
        EXPECT_GT(said.tau(), target_vocab > draft_vocab ? 0.1 : 1.0) << tree << ", temperature " << temperature;
      }
    }
    if (target_vocab > draft_vocab) {
      EXPECT_GT(beyond, 0) << "the target said nothing that its draft has no id for";
    }
  }
};

TEST_P(SimplePadding, ADraftWithLess) { expect_exact(kMore, kLess); }
TEST_P(SimplePadding, ADraftWithMore) { expect_exact(kLess, kMore); }

// A token that is ranked and that the target has no id for would be read beyond the end of its embedding.
TEST_P(SimplePadding, NothingIsProposedThatTheTargetHasNoIdFor) {
  const TemporaryFolder target_folder, draft_folder;
  const testing::LoadedModel target(write_model(target_folder, kLess), DType::kF32, GetParam());
  const Tokenizer tokenizer = target.checkpoint->load_tokenizer();
  const auto model = open_draft(options(write_model(draft_folder, kMore), "eagle2:128,5,60"), *target.device,
                                target.checkpoint->config(), target.weights, &tokenizer);
  model->load(nullptr, nullptr);
  const std::vector<int32_t> prompt = testing::made_up_ids(40, static_cast<int32_t>(kLess));
  const auto draft = model->start({.prompt_tokens = 40, .context_tokens = 100});
  draft->allocate(*target.compute);
  ASSERT_TRUE(draft->finish_prefill(prompt, nullptr, nullptr));
  Tree tree;
  draft->propose(5, 40, {}, &tree);
  EXPECT_EQ(tree.size(), 128);
  EXPECT_LT(*std::max_element(tree.tokens.begin(), tree.tokens.end()), kLess);
}

TEST_P(SimplePadding, OnlyTwoTokenizersCanTellPaddingFromTokens) {
  const TemporaryFolder target_folder, draft_folder, short_folder;
  const testing::LoadedModel target(write_model(target_folder, kMore), DType::kF32, GetParam());
  const Tokenizer tokenizer = target.checkpoint->load_tokenizer();
  const auto open = [&](const std::string& draft, const Tokenizer* known) {
    return open_draft(options(draft, "chain:2"), *target.device, target.checkpoint->config(), target.weights, known);
  };
  const auto refused = [&](const std::string& draft, const Tokenizer* known, const std::string& vocab,
                           const std::string& why) {
    testing_support::expect_error(ExitCode::kBadInput, draft,
                                  {"a vocabulary of " + vocab, "the target's vocabulary is 2304", why},
                                  [&] { open(draft, known); });
  };
  const std::string draft = write_model(draft_folder, kLess);
  EXPECT_NO_THROW(open(draft, &tokenizer));
  refused(draft, nullptr, "2048", "none to compare");
  std::filesystem::remove(draft_folder / "tokenizer.json");
  refused(draft, &tokenizer, "2048", "none to compare");
  refused(write_model(short_folder, kNamed - 1), &tokenizer, "2000", "names tokens from 2000 on");
}

INSTANTIATE_TEST_SUITE_P(Devices, SimplePadding, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

}  // namespace
}  // namespace headrace
