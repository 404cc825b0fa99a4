// SmolLM2-64K on sixteen thousand tokens, minutes of work: HEADRACE_TEST_SMOLLM2_64K names the model (tests/run.sh
// has it made).
#include <cstdlib>

#include "tests/runtime/engine/smollm2_golden.h"

namespace headrace {
namespace {

TEST(SmolLm2Nightly, SixteenK) {
  const char* const model = std::getenv("HEADRACE_TEST_SMOLLM2_64K");
  if (model == nullptr) GTEST_SKIP() << "HEADRACE_TEST_SMOLLM2_64K names no model; tests/smollm2_64k.sh makes it";
  testing::expect_golden(testing::LoadedModel(model, DType::kF32), "sixteen-k");
}

}  // namespace
}  // namespace headrace
