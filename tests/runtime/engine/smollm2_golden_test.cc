// The real model against transformers in f32, from the GGUF itself (HEADRACE_TEST_GGUF): first logits within 2e-3, the
// same greedy tokens for the whole length. Sixteen-k needs SmolLM2-64K (HEADRACE_TEST_SMOLLM2_64K, a directory) and is
// nightly.
#include "tests/runtime/engine/smollm2_golden.h"

#include <gtest/gtest.h>

#include "tests/support/hf_directory.h"

namespace headrace {
namespace {

using testing::LoadedModel;

class SmolLm2Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(SmolLm2Golden, LogitsAndGreedyTokens) {
  testing::expect_golden(LoadedModel(test_gguf(), DType::kF32), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Texts, SmolLm2Golden, ::testing::Values("short", "chapter", "seven-k"), [](const auto& name) {
  std::string id = name.param;
  std::erase(id, '-');
  return id;
});

TEST(SmolLm2Directory, LogitsAndGreedyTokens) {
  const LoadedModel model(test_gguf_as_directory(DType::kF32), DType::kF32);
  testing::expect_golden(model, "short");
  testing::expect_golden(model, "chapter");
}

}  // namespace
}  // namespace headrace
