// A loaded SmolLM2 against one of tests/data/smollm2 (transformers, f32).
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace::testing {

inline void expect_golden(const LoadedModel& model, const std::string& name) {
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

}  // namespace headrace::testing
