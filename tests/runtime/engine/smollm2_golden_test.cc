// The real model against transformers in f32, from the GGUF itself (HEADRACE_TEST_GGUF), on every device that is there.
// Sixteen-k needs SmolLM2-64K (HEADRACE_TEST_SMOLLM2_64K) and is nightly.
#include "tests/runtime/engine/smollm2_golden.h"

#include <gtest/gtest.h>

#include "tests/support/hf_directory.h"

namespace headrace {
namespace {

using testing::LoadedModel;

struct Case {
  DeviceChoice device;
  DType dtype;
  const char* text;
};

class SmolLm2Golden : public ::testing::TestWithParam<Case> {};

TEST_P(SmolLm2Golden, LogitsAndGreedyTokens) {
  testing::expect_golden(LoadedModel(test_gguf(), GetParam().dtype, GetParam().device), GetParam().text);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DeviceChoice device : testing::session_devices()) {
    for (const char* text : {"short", "chapter", "seven-k"}) all.push_back({device, DType::kF32, text});
    for (const char* text : {"short", "chapter"}) all.push_back({device, DType::kBF16, text});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Texts, SmolLm2Golden, ::testing::ValuesIn(cases()), [](const auto& given) {
  const Case& c = given.param;
  std::string text = c.text;
  std::erase(text, '-');
  return testing::device_name(c.device) + "_" + dtype_name(c.dtype) + "_" + text;
});

// The same weights by the other loader: one text tells.
TEST(SmolLm2Directory, LogitsAndGreedyTokens) {
  const LoadedModel model(test_gguf_as_directory(DType::kF32), DType::kF32);
  testing::expect_golden(model, "short");
}

}  // namespace
}  // namespace headrace
