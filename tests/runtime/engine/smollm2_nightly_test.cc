// SmolLM2-64K on sixteen thousand tokens, minutes of work: HEADRACE_TEST_SMOLLM2_64K names its directory.
#include <cstdlib>

#include "tests/runtime/engine/smollm2_golden.h"

namespace headrace {
namespace {

TEST(SmolLm2Nightly, SixteenK) {
  const char* const directory = std::getenv("HEADRACE_TEST_SMOLLM2_64K");
  if (directory == nullptr) GTEST_SKIP() << "HEADRACE_TEST_SMOLLM2_64K names no directory";
  testing::expect_golden(testing::LoadedModel(directory, DType::kF32), "sixteen-k");
}

}  // namespace
}  // namespace headrace
