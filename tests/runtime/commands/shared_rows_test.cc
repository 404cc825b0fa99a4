// Which prompts of a batch keep their rows for the next one, and for how many tokens.
#include "runtime/commands/shared_rows.h"

#include <gtest/gtest.h>

#include "cache/minimum_budgets.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

TEST(SharedRows, AreKeptWhereNeighboursBeginAlike) {
  // Three questions about one document, one about another, and two texts that share a little.
  const std::vector<SharedPrompt> prompts = {{.bytes = 8000, .shared = 0, .answer_tokens = 100},
                                             {.bytes = 8100, .shared = 4096, .answer_tokens = 500},
                                             {.bytes = 8000, .shared = 4096, .answer_tokens = 100},
                                             {.bytes = 5000, .shared = 0, .answer_tokens = 100},
                                             {.bytes = 20000, .shared = 1024, .answer_tokens = 100}};
  const int64_t first = tokens_to_share(prompts, 0, 2000);
  EXPECT_GE(first, 2025 + 500);  // what the second needs
  EXPECT_LT(first, 2025 * 9 / 8 + 500);
  EXPECT_GE(tokens_to_share(prompts, 1, 2025), 2025 + 500);
  EXPECT_EQ(tokens_to_share(prompts, 2, 2000), 2000 + 100) << "the last uses the rows, and keeps none for others";
  EXPECT_EQ(tokens_to_share(prompts, 3, 1250), 0);
  EXPECT_EQ(tokens_to_share(prompts, 4, 5000), 0);
}

TEST(SharedRows, AreThoseThatAllPromptsBetweenShare) {
  const std::vector<SharedPrompt> prompts = {{.bytes = 4000, .shared = 0, .answer_tokens = 10},
                                             {.bytes = 4000, .shared = 1024, .answer_tokens = 10},
                                             {.bytes = 16000, .shared = 4000, .answer_tokens = 10}};
  EXPECT_LT(tokens_to_share(prompts, 0, 1000), 1500) << "of the third, 1,024 of 16,000 bytes";
  EXPECT_GT(tokens_to_share(prompts, 1, 1000), 4000);
}

TEST(SharedRows, AnAnswerWithoutALimitTakesTheContext) {
  std::vector<SharedPrompt> prompts = {{.bytes = 4000, .shared = 0, .answer_tokens = 10},
                                       {.bytes = 4000, .shared = 2048, .answer_tokens = -1}};
  EXPECT_GT(tokens_to_share(prompts, 0, 1000), int64_t{1} << 40);
  prompts[0].answer_tokens = -1;
  EXPECT_GT(tokens_to_share(prompts, 0, 1000), int64_t{1} << 40);
}

TEST(SharedRows, NeedNeitherSavedPrefixesNorApproximateRuns) {
  EngineOptions options;
  EXPECT_TRUE(may_share_rows(options));
  options.verify.mode = VerifyMode::kLossless;
  EXPECT_TRUE(may_share_rows(options));
  options.verify.mode = VerifyMode::kApproximate;
  EXPECT_FALSE(may_share_rows(options));
  options.verify.mode = VerifyMode::kFull;
  options.prefix_cache.folder = "kept";
  EXPECT_FALSE(may_share_rows(options));
}

TEST(SharedRows, OfFilesByTheirBytes) {
  const TemporaryFolder folder;
  const std::string document(10000, 'd');
  const std::vector<std::string> files = {folder.write("a", document + "one"),
                                          folder.write("b", document + "other"),
                                          folder.write("c", document),
                                          folder.write("d", document.substr(0, 1000) + "x"),
                                          folder.path(),
                                          "-",
                                          folder.write("e", "d")};
  const std::vector<SharedPrompt> prompts = shared_prompts(files, 7);
  EXPECT_EQ(shared_bytes(prompts), (std::vector<size_t>{0, 10001, 10000, 0, 0, 0, 0}));
  EXPECT_EQ(prompts[1].bytes, 10005u);
  EXPECT_EQ(prompts[1].answer_tokens, 7);
}

// The longest prompt does not fit beside the weights; the others do, and share what they can.
TEST(SharedRows, AreKeptAsFarAsTheBudgetGoes) {
  const TemporaryFolder folder;
  write_tiny_model(folder.path());
  EngineOptions options;
  options.model = folder.path();
  options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
  options.kv = KvMode::kDevice;
  options.want_tokenizer = false;
  const GenerateOptions run{.max_tokens = 10, .ignore_eos = true};
  std::vector<int32_t> first(2000), second(1990);
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<int32_t>(i * i % 251);
  for (size_t i = 0; i < second.size(); ++i) second[i] = i < 1900 ? first[i] : 7;
  Engine roomy(options);
  const GenerateResult answers[] = {roomy.generate(first, run, nullptr), roomy.generate(second, run, nullptr)};
  GenerateOptions keeping = run;
  keeping.keep = KeepRows::kPrompt;
  keeping.keep_tokens = 2010;
  keeping.log_probs = LogProbs::kReserved;
  const RunPlan plan = roomy.plan(2000, keeping);
  options.device.vram_bytes = plan.weights_bytes + plan.memory.vram_bytes + 64 * kKiB;
  Engine engine(options);
  keeping.keep_tokens = 100000;
  EXPECT_THROW(engine.plan(2000, keeping), DoesNotFit);
  EXPECT_TRUE(same_answer(generate_sharing(engine, first, run, 100000, nullptr), answers[0]));
  const GenerateResult next = generate_sharing(engine, second, run, 100000, nullptr);
  EXPECT_EQ(next.kept_tokens, 1900);
  EXPECT_TRUE(same_answer(next, answers[1]));
}

}  // namespace
}  // namespace headrace
