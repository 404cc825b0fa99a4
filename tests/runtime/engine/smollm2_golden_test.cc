// The real model against transformers in f32, from the GGUF itself (HEADRACE_TEST_GGUF): first logits within 2e-3, the
// same greedy tokens for the whole length. Sixteen-k needs SmolLM2-64K (HEADRACE_TEST_SMOLLM2_64K, a directory) and is
// nightly.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::Golden;
using testing::LoadedModel;

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

void expect_golden(const LoadedModel& model, const std::string& name) {
  const Golden golden = testing::read_golden(HEADRACE_TEST_DATA "/smollm2/" + name + ".safetensors");
  const std::vector<int32_t> ids = golden.ids("input_ids"), greedy = golden.ids("greedy");
  const std::vector<float>& first = golden.floats.at("first_logits");
  auto session = model.session(model.options(static_cast<int64_t>(ids.size()), static_cast<int64_t>(greedy.size())));
  std::vector<std::vector<float>> logits;
  const std::vector<int32_t> tokens =
      testing::decode_plainly(*session, ids, static_cast<int64_t>(greedy.size()), &logits);
  const float difference = testing::largest_difference(logits[0].data(), first.data(), first.size());
  EXPECT_LT(difference, 2e-3f) << name;
  EXPECT_EQ(tokens, greedy) << name;
  std::printf("%s: %zu prompt tokens, first logits within %.2e, %zu greedy tokens equal\n", name.c_str(), ids.size(),
              static_cast<double>(difference), greedy.size());
}

class SmolLm2Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(SmolLm2Golden, LogitsAndGreedyTokens) {
  const std::string gguf = from_environment("HEADRACE_TEST_GGUF");
  ASSERT_FALSE(gguf.empty()) << "HEADRACE_TEST_GGUF names no file: run tests/run.sh, which fetches the model";
  expect_golden(LoadedModel(gguf, DType::kF32), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Texts, SmolLm2Golden, ::testing::Values("short", "chapter", "seven-k"), [](const auto& name) {
  std::string id = name.param;
  std::erase(id, '-');
  return id;
});

TEST(SmolLm2Directory, LogitsAndGreedyTokens) {
  const std::string directory = from_environment("HEADRACE_TEST_SMOLLM2_DIR");
  ASSERT_FALSE(directory.empty()) << "HEADRACE_TEST_SMOLLM2_DIR names no directory: run tests/run.sh, which makes it";
  expect_golden(LoadedModel(directory, DType::kF32), "short");
  expect_golden(LoadedModel(directory, DType::kF32), "chapter");
}

TEST(SmolLm2Nightly, SixteenK) {
  const std::string directory = from_environment("HEADRACE_TEST_SMOLLM2_64K");
  if (directory.empty()) GTEST_SKIP() << "HEADRACE_TEST_SMOLLM2_64K names no directory";
  expect_golden(LoadedModel(directory, DType::kF32), "sixteen-k");
}

}  // namespace
}  // namespace headrace
