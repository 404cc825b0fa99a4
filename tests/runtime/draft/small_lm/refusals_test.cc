// Small models that do not fit their target, and options that do not go with them: each is refused, naming both values.
#include <gtest/gtest.h>

#include "runtime/base/input_file.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/draft_model.h"
#include "runtime/draft/open/open_draft.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/hf_directory.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::tiny_model;

class SimpleRefusals : public ::testing::Test {
 protected:
  // A model of `vocab` tokens in `folder`, with a tokenizer.json if one is given.
  static std::string write_model(const TemporaryFolder& folder, int64_t vocab, const std::string& tokenizer = "") {
    ModelConfig c;
    c.family = "llama";
    c.hidden = 16, c.vocab = vocab, c.max_positions = 128;
    c.layers = same_layers(1, {.mixer = AttentionSpec{.heads = 2, .kv_heads = 1, .head_dim = 8}, .ffn = {16}});
    write_hf_directory(*make_random_checkpoint("small", c, 1), DType::kF32, folder.path());
    if (!tokenizer.empty()) folder.write("tokenizer.json", tokenizer);
    return folder.path();
  }
  static std::string tokenizer_json(const std::string& name) {
    std::ifstream file(std::string(HEADRACE_TEST_DATA "/tokenizers/") + name + ".tokenizer.json");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::unique_ptr<DraftModel> open(const DraftOptions& options, const Tokenizer* tokenizer = nullptr) const {
    return open_draft(options, *model_.device, model_.checkpoint->config(), model_.weights, tokenizer);
  }
  void expect_refused(const DraftOptions& options, ExitCode code, const std::vector<std::string>& expected,
                      const Tokenizer* tokenizer = nullptr) const {
    testing_support::expect_error(code, "", expected, [&] { open(options, tokenizer); });
  }
  static DraftOptions simple(const std::string& model) {
    return {.type = SpecType::kSimple, .model = model, .tree = chain_shape(2)};
  }

  const testing::LoadedModel model_{tiny_model("qwen3"), DType::kF32};  // of 512 tokens
};

TEST_F(SimpleRefusals, AnotherVocabulary) {
  for (const int64_t vocab : {511, 513}) {
    const TemporaryFolder folder;
    expect_refused(simple(write_model(folder, vocab)), ExitCode::kBadInput,
                   {folder.path(), str("vocabulary of ", vocab), "the target's vocabulary is 512"});
  }
}

TEST_F(SimpleRefusals, AnotherTokenizer) {
  const Tokenizer target = Tokenizer::from_json(tokenizer_json("gpt2"), "gpt2");
  const TemporaryFolder folder;
  const DraftOptions other = simple(write_model(folder, 512, tokenizer_json("qwen2")));
  int32_t first = 0;
  const Tokenizer own = Tokenizer::from_json(tokenizer_json("qwen2"), "qwen2");
  while (own.token_name(first) == target.token_name(first)) ++first;
  expect_refused(other, ExitCode::kBadInput,
                 {folder.path(), str("token ", first, " is \"", printable(own.token_name(first))),
                  str("target's is \"", printable(target.token_name(first)))},
                 &target);
  EXPECT_NO_THROW(open(other));  // nothing to compare with
  folder.write("tokenizer.json", tokenizer_json("gpt2"));
  EXPECT_NO_THROW(open(other, &target));
  std::filesystem::remove(folder / "tokenizer.json");
  EXPECT_NO_THROW(open(other, &target));  // taken to be the target's
  folder.write("tokenizer.json", "{");
  expect_refused(other, ExitCode::kBadInput, {folder / "tokenizer.json"}, &target);
}

TEST_F(SimpleRefusals, NoModelAtAll) {
  expect_refused(simple(""), ExitCode::kUsage, {"--spec-type", "draft-simple needs a draft: -md"});
  expect_refused(simple("/gone"), ExitCode::kBadInput, {"/gone"});
  const TemporaryFolder folder;
  expect_refused(simple(folder.path()), ExitCode::kBadInput, {folder.path(), "config.json"});
}

TEST_F(SimpleRefusals, AWindowThatIsTooSmall) {
  DraftOptions options = simple(tiny_model("qwen3"));
  options.window = kMinDraftWindow - 1;
  expect_refused(options, ExitCode::kUsage, {"--draft-window", str(kMinDraftWindow - 1), str(kMinDraftWindow)});
  options.window = kMinDraftWindow;
  EXPECT_NO_THROW(open(options));
}

}  // namespace
}  // namespace headrace
