// The real model against transformers in f32, from the GGUF itself (HEADRACE_TEST_GGUF), on every device that is there.
// Sixteen-k needs SmolLM2-64K (HEADRACE_TEST_SMOLLM2_64K) and is nightly.
#include "tests/runtime/engine/smollm2_golden.h"

#include <gtest/gtest.h>

#include "runtime/commands/quality/perplexity.h"
#include "tests/support/hf_directory.h"
#include "tests/support/temporary_folder.h"

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

// headrace bench quality --perplexity to the last printed digit: kept and dequantised weights give the same bits.
TEST(SmolLm2Perplexity, KeptWeightsGiveWhatDequantisedOnesGive) {
  const TemporaryFolder folder;
  const std::string text = folder.write("rivers.txt",
                                        "The river rises in the hills and flows to the sea. In spring its water is "
                                        "high, and the mills that stand along its banks grind corn day and night.");
  std::vector<PerplexityRow> rows;
  for (const WeightPolicy policy : {WeightPolicy::kKeep, WeightPolicy::kDequantise}) {
    PerplexityOptions options;
    options.engine.model = test_gguf();
    options.engine.device.choice = DeviceChoice::kCpu;
    options.engine.use_chat_template = false;
    options.engine.weights = policy;
    options.engine.prefill = PrefillType::kCompute;  // in 8 bits they are converted from other values
    options.documents = {text};
    rows.push_back(run_perplexity(options, {}).all());
  }
  EXPECT_EQ(rows[0].nats_sum, rows[1].nats_sum);
  EXPECT_EQ(rows[0].predicted, rows[0].tokens - 1);
  EXPECT_GT(rows[0].perplexity(), 2);
  EXPECT_LT(rows[0].perplexity(), 60);
}

}  // namespace
}  // namespace headrace
