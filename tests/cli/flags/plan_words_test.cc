// headrace plan qwen3-14b rtx4090 128K
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cli/flags/args_fixture.h"
#include "tests/support/scoped_variable.h"

namespace headrace {
namespace {

using Words = std::vector<std::string>;

PlanOptions plan(Words words) {
  words.insert(words.begin(), "plan");
  return std::get<PlanArgs>(parse_args(words)).plan;
}

std::string plan_refusal(Words words) {
  words.insert(words.begin(), "plan");
  return refusal(words);
}

TEST(PlanWords, NameModelCardAndContextInAnyOrder) {
  Words words = {"128K", "qwen3-14b", "rtx4090"};
  do {
    const PlanOptions options = plan(words);
    EXPECT_EQ(options.shape, "qwen3-14b");
    EXPECT_EQ(options.gpu, "rtx4090");
    EXPECT_EQ(options.engine.ctx_size, 131072);
    EXPECT_EQ(options.engine.model, "");
  } while (std::next_permutation(words.begin(), words.end()));
  EXPECT_EQ(plan({"qwen3-14b", "4090", "8192"}).gpu, "4090");
  EXPECT_EQ(plan({"qwen3-14b", "4090", "8192"}).engine.ctx_size, 8192);
  EXPECT_EQ(plan({"vram=12GiB,bandwidth=360", "qwen3-14b"}).gpu, "vram=12GiB,bandwidth=360");
  EXPECT_EQ(plan({"org/name"}).engine.model, "org/name");
  EXPECT_EQ(plan({"file.gguf", "-c", "8K"}).engine.model, "file.gguf");
  EXPECT_EQ(plan({::testing::TempDir()}).engine.model, ::testing::TempDir());
  EXPECT_EQ(plan({"a/config.json", "--gpu", "h100"}).shape, "a/config.json");
  const PlanOptions flags = plan({"rtx4090", "--shape", "qwen3-14b", "-n", "8"});
  EXPECT_EQ(flags.shape + " " + flags.gpu, "qwen3-14b rtx4090");
}

TEST(PlanWords, SetNothingTwice) {
  EXPECT_NE(plan_refusal({"qwen3-14b", "rtx4090", "rtx3090"}).find("'rtx3090' names a card, and another one"),
            std::string::npos);
  EXPECT_NE(plan_refusal({"qwen3-14b", "qwen3-8b"}).find("'qwen3-8b' names a model"), std::string::npos);
  EXPECT_NE(plan_refusal({"qwen3-14b", "8K", "-c", "16K"}).find("'8K' names a context"), std::string::npos);
  EXPECT_NE(plan_refusal({"rtx4090"}).find("-m/--model or --shape is needed"), std::string::npos);
  // A variable gives way to a word, as it does to a flag.
  const ScopedVariable model("HEADRACE_MODEL", "other"), context("HEADRACE_CTX_SIZE", "4K");
  EXPECT_EQ(plan({"qwen3-14b"}).shape, "qwen3-14b");
  EXPECT_EQ(plan({"qwen3-14b"}).engine.model, "");
  EXPECT_EQ(plan({"qwen3-14b", "8K"}).engine.ctx_size, 8192);
  EXPECT_EQ(plan({"qwen3-14b"}).engine.ctx_size, 4096);
}

TEST(PlanWords, AreSpelledAsTheListsSpellThem) {
  EXPECT_NE(plan_refusal({"qwen3-14", "rtx4090"})
                .find("'qwen3-14' is not a model, shape, card or number of tokens; did "
                      "you mean 'qwen3-14b'?"),
            std::string::npos);
  EXPECT_NE(plan_refusal({"qwen3-14b", "rtx4099"}).find("did you mean 'rtx4090'?"), std::string::npos);
  EXPECT_NE(plan_refusal({"qwen3-14b", "--gpu", "rtx40900"}).find("; did you mean 'rtx4090'?"), std::string::npos);
  EXPECT_NE(plan_refusal({"--shape", "qwen3-14c"}).find("; did you mean 'qwen3-14b'?"), std::string::npos);
  EXPECT_NE(plan_refusal({"--shape", "gpt-9"}).find("'gpt-9' is not one of "), std::string::npos);
}

}  // namespace
}  // namespace headrace
