// The key of a batch's answers: what --prefill-type makes of it.
#include "cli/answer_options.h"

#include <gtest/gtest.h>

#include <string>

#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/random_checkpoint.h"

namespace headrace {
namespace {

std::string key(PrefillType prefill, WeightPolicy weights, const WeightMixture* stored,
                std::optional<DType> dtype = DType::kBF16) {
  EngineOptions options;
  options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
  options.want_tokenizer = false;
  options.use_chat_template = false;
  options.dtype = dtype;
  options.weights = weights;
  options.prefill = prefill;
  ModelConfig config = open_checkpoint(HEADRACE_TEST_DATA "/tiny/llama31")->config();
  const Engine engine(options, make_random_checkpoint("tiny", config, 1, stored));
  return answer_options(options, {}, engine, {});
}

// On a CPU the text of kept weights is that of dequantised ones, unless prefill is in 8 bits. `auto` is what it means.
TEST(AnswerOptions, KnowThePrefill) {
  constexpr PrefillType kAuto = PrefillType::kAuto, kBf16 = PrefillType::kCompute, kInt8 = PrefillType::kInt8;
  constexpr WeightPolicy kKeep = WeightPolicy::kKeep, kDequantise = WeightPolicy::kDequantise;
  const WeightMixture* const q8_0 = find_weight_mixture("q8_0");
  ASSERT_NE(q8_0, nullptr);
  EXPECT_EQ(key(kBf16, kKeep, q8_0), key(kBf16, kDequantise, q8_0));
  EXPECT_NE(key(kInt8, kKeep, q8_0), key(kInt8, kDequantise, q8_0));
  EXPECT_NE(key(kInt8, kKeep, q8_0), key(kBf16, kKeep, q8_0));
  EXPECT_NE(key(kInt8, kDequantise, q8_0), key(kBf16, kDequantise, q8_0));
  EXPECT_EQ(key(kAuto, kKeep, q8_0), key(kInt8, kKeep, q8_0));
  EXPECT_EQ(key(kAuto, kDequantise, q8_0), key(kBf16, kDequantise, q8_0));
  EXPECT_EQ(key(kAuto, kKeep, q8_0, DType::kF32), key(kBf16, kKeep, q8_0, DType::kF32));
  EXPECT_EQ(key(kAuto, kKeep, nullptr), key(kBf16, kKeep, nullptr));
}

}  // namespace
}  // namespace headrace
