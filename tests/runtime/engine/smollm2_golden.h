// A loaded SmolLM2 against one of tests/data/smollm2 (transformers, f32).
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace::testing {

// transformers 5.17 itself, in bf16 on a CPU, is 0.36 ("short") and 0.41 ("chapter") away from these f32 logits.
constexpr float kBf16Tolerance = 0.6f;
constexpr size_t kBf16Steps = 64;

// The text itself decides: f32, every greedy token is the reference's.
inline void expect_greedy(Session& session, const Golden& golden, std::vector<float>* first_logits) {
  const std::vector<int32_t> ids = golden.ids("input_ids"), greedy = golden.ids("greedy");
  std::vector<std::vector<float>> logits;
  EXPECT_EQ(decode_plainly(session, ids, static_cast<int64_t>(greedy.size()), &logits), greedy);
  *first_logits = logits[0];
}

// bf16, along the reference's text: the next token is the reference's wherever its two best logits are further apart
// than what both may be off by together. Returns how often that was so.
inline size_t expect_clear_steps(Session& session, const Golden& golden, std::vector<float>* first_logits) {
  const std::vector<int32_t> ids = golden.ids("input_ids"), greedy = golden.ids("greedy");
  const std::vector<float>& gaps = golden.floats.at("gaps");
  size_t clear = 0;
  const auto compare = [&](size_t step, int32_t token) {
    if (gaps[step] < 2 * kBf16Tolerance) return;
    ++clear;
    EXPECT_EQ(token, greedy[step]) << "step " << step << ", gap " << gaps[step];
  };
  compare(0, *session.prefill(ids, nullptr, nullptr));
  *first_logits = session.logits(1);
  Tree tree;
  Acceptance acceptance;
  for (size_t step = 1; step < kBf16Steps; ++step) {
    tree.reset(greedy[step - 1]);
    accept(tree, session.verify(tree), &acceptance);
    session.commit(acceptance);
    compare(step, acceptance.next);
  }
  return clear;
}

// First logits within 2e-3 in f32, within kBf16Tolerance in bf16; then as the two above say.
inline void expect_golden(const LoadedModel& model, const std::string& name) {
  const Golden golden = testing::read_golden(HEADRACE_TEST_DATA "/smollm2/" + name + ".safetensors");
  const size_t prompt = golden.ids("input_ids").size(), steps = golden.ids("greedy").size();
  const std::vector<float>& first = golden.floats.at("first_logits");
  const bool exact = model.weights.dtype() == DType::kF32;
  auto session =
      model.session(model.options(static_cast<int64_t>(prompt), static_cast<int64_t>(exact ? steps : kBf16Steps)));
  std::vector<float> logits;
  size_t compared = steps;
  if (exact) {
    expect_greedy(*session, golden, &logits);
  } else {
    compared = expect_clear_steps(*session, golden, &logits);
    EXPECT_GT(compared, kBf16Steps / 4) << name;
  }
  const float difference = testing::largest_difference(logits.data(), first.data(), first.size());
  EXPECT_LT(difference, exact ? 2e-3f : kBf16Tolerance) << name;
  std::printf("%s, %s on %s: %zu prompt tokens, first logits within %.2e, %zu tokens compared\n", name.c_str(),
              dtype_name(model.weights.dtype()), model.device->name().c_str(), prompt, static_cast<double>(difference),
              compared);
}

}  // namespace headrace::testing
