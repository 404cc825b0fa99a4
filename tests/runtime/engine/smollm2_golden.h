// A loaded SmolLM2 against one of tests/data/smollm2 (transformers, f32).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace::testing {

// transformers 5.17 itself, in bf16 on a CPU, is 0.36 ("short") and 0.41 ("chapter") away from these f32 logits.
constexpr float kBf16Tolerance = 0.6f;

// f32: first logits within 2e-3, every greedy token equal. bf16: within kBf16Tolerance, and equal until the first step
// where the reference's own two best logits are closer than 0.1.
inline void expect_golden(const LoadedModel& model, const std::string& name) {
  const Golden golden = testing::read_golden(HEADRACE_TEST_DATA "/smollm2/" + name + ".safetensors");
  const std::vector<int32_t> ids = golden.ids("input_ids");
  std::vector<int32_t> greedy = golden.ids("greedy");
  const std::vector<float>&first = golden.floats.at("first_logits"), &gaps = golden.floats.at("gaps");
  const bool exact = model.weights.dtype() == DType::kF32;
  if (!exact) {
    const auto near_tie = std::find_if(gaps.begin(), gaps.end(), [](float gap) { return gap < 0.1f; });
    greedy.resize(std::max<size_t>(1, static_cast<size_t>(near_tie - gaps.begin())));
  }
  auto session = model.session(model.options(static_cast<int64_t>(ids.size()), static_cast<int64_t>(greedy.size())));
  std::vector<std::vector<float>> logits;
  const std::vector<int32_t> tokens =
      testing::decode_plainly(*session, ids, static_cast<int64_t>(greedy.size()), &logits);
  const float difference = testing::largest_difference(logits[0].data(), first.data(), first.size());
  EXPECT_LT(difference, exact ? 2e-3f : kBf16Tolerance) << name;
  EXPECT_EQ(tokens, greedy) << name;
  std::printf("%s, %s on %s: %zu prompt tokens, first logits within %.2e, %zu greedy tokens\n", name.c_str(),
              dtype_name(model.weights.dtype()), model.device->name().c_str(), ids.size(),
              static_cast<double>(difference), greedy.size());
}

}  // namespace headrace::testing
