// Prefill: the chunk form against the recurrence in double, and its remainder and its calls bit for bit.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/kernels/recurrence/fixture.h"

namespace headrace {
namespace {

using testing_support::ascending;
using testing_support::at;
using testing_support::chain;
using testing_support::chosen_rows;
using testing_support::chosen_tokens;
using testing_support::DeltaTest;
using testing_support::expect_near;
using testing_support::expect_same_bits;
using testing_support::kDeltaShapes;
using testing_support::name_of;
using testing_support::plain_delta;
using testing_support::plain_step;
using testing_support::PlainDelta;
using testing_support::random_tokens;
using testing_support::random_values;
using testing_support::rounded;
using testing_support::state_size;
using testing_support::Tokens;

class DeltaChunksTest : public DeltaTest {
 protected:
  Chunked random_before(uint64_t seed, const DeltaShape& shape, DType type, float scale = 0.3f) {
    return {{},
            random_values(seed, state_size(shape), scale),
            rounded(random_values(seed + 1, 3 * shape.channels()), type)};
  }
  std::vector<float> random_m(uint64_t seed, const DeltaShape& shape, int64_t rows, DType type, int64_t padding = 5) {
    return rounded(random_values(seed, rows * (shape.channels() + padding)), type);
  }

  // Against the recurrence in double. The chunk form adds other products in another order: what differs is some 1e-6 of
  // the terms, which are larger than their sum. CUDA leaves out 2^-17 of each product, some 1e-5. `terms`: how much
  // larger than the sum they are.
  void expect_plain(const DeltaShape& shape, const Tokens& tokens, const std::string& what, double terms = 1) {
    const double tolerance = GetParam().device == DeviceChoice::kCuda ? 5e-5 * terms : 2e-5;
    const Chunked before = random_before(77, shape, DType::kF32);
    const Chunked after = chunks(shape, before, tokens, random_m(3, shape, tokens.rows, DType::kF32), DType::kF32);
    PlainDelta plain = plain_delta(shape, before.state);
    std::vector<double> o;
    for (int64_t row = 0; row < tokens.rows; ++row) {
      plain_step(shape, tokens, row, &plain);
      o.insert(o.end(), plain.o.begin(), plain.o.end());
    }
    expect_near(after.o, o, tolerance, 1, what + ", o");
    expect_near(after.state, plain.state, tolerance, 1, what + ", state");
  }

  // One call against several, with so many rows each.
  void expect_same_in_calls(uint64_t seed, const DeltaShape& shape, DType type, const std::vector<int64_t>& calls) {
    const int64_t rows = std::accumulate(calls.begin(), calls.end(), int64_t{0});
    const Tokens tokens = random_tokens(seed, shape, rows);
    const Chunked before = random_before(seed + 1, shape, type);
    const std::vector<float> m = random_m(seed + 2, shape, rows, type);
    const Chunked once = chunks(shape, before, tokens, m, type);
    Chunked parts = before;
    std::vector<float> o;
    int64_t first = 0;
    for (const int64_t count : calls) {
      const std::vector<int32_t> own = ascending(first, count);
      parts = chunks(shape, parts, chosen_tokens(tokens, shape, own), chosen_rows(m, shape.channels() + 5, own), type);
      o.insert(o.end(), parts.o.begin(), parts.o.end());
      first += count;
    }
    expect_same_bits(o, once.o, name_of(shape) + ", o");
    expect_same_bits(parts.state, once.state, name_of(shape) + ", state");
    expect_same_bits(parts.conv, once.conv, name_of(shape) + ", conv");
  }
};
INSTANTIATE_KERNEL_TEST(DeltaChunksTest);

TEST_P(DeltaChunksTest, EqualsTheRecurrence) {
  uint64_t seed = 1;
  for (const DeltaShape& shape : kDeltaShapes) {
    for (const int64_t rows : {1, 63, 64, 65, 171}) {
      expect_plain(shape, random_tokens(seed += 10, shape, rows), str(name_of(shape), ", ", rows, " rows"));
    }
  }
}

TEST_P(DeltaChunksTest, StrongDecaysDoNotOverflow) {
  const DeltaShape shape = kDeltaShapes[3];
  for (const float factor : {0.0f, 30.0f, 3000.0f}) {
    Tokens tokens = random_tokens(5, shape, 150);
    for (float& g : tokens.g) g *= factor;
    expect_plain(shape, tokens, str("decays times ", factor));
  }
}

// The largest that the solve can become: each token overwrites what the one before wrote.
TEST_P(DeltaChunksTest, OneKeyForAllTokens) {
  const DeltaShape shape = kDeltaShapes[6];
  Tokens tokens = random_tokens(5, shape, 128);
  for (int64_t row = 1; row < tokens.rows; ++row) {
    std::copy(tokens.k.begin(), tokens.k.begin() + shape.k_width(), tokens.k.begin() + row * shape.k_width());
  }
  tokens.beta.assign(tokens.beta.size(), 1.0f);
  tokens.g.assign(tokens.g.size(), 0.0f);
  expect_plain(shape, tokens, "one key", 16);  // the state is one token's part of a sum over 64
}

TEST_P(DeltaChunksTest, TheRemainderHasTheBitsOfDecoding) {
  uint64_t seed = 500;
  for (const DeltaShape& shape : kDeltaShapes) {
    for (const int64_t whole : {0, 64}) {
      const int64_t rows = whole + 21;
      const Tokens tokens = random_tokens(seed += 10, shape, rows);
      const Chunked before = random_before(++seed, shape, DType::kF32);
      const std::vector<float> m = random_m(++seed, shape, rows, DType::kF32, 0);
      const Chunked all = chunks(shape, before, tokens, m, DType::kF32);
      Chunked state = before;
      if (whole > 0) {
        const std::vector<int32_t> first = ascending(0, whole);
        state = chunks(shape, before, chosen_tokens(tokens, shape, first), chosen_rows(m, shape.channels(), first),
                       DType::kF32);
      }
      const std::vector<int32_t> rest = ascending(whole, 21);
      const Tokens own = chosen_tokens(tokens, shape, rest);
      const Walked walked = walk(shape, state.state, own, chain(21), {21});
      expect_same_bits(chosen_rows(all.o, shape.v_width(), rest), walked.o, name_of(shape) + ", o");
      expect_same_bits(all.state, commit(shape, state.state, own, walked.d, ascending(0, 21)),
                       name_of(shape) + ", state");
    }
  }
}

// A prompt in one call, or in calls that begin at multiples of 64, or after rows that end at one.
TEST_P(DeltaChunksTest, CallsDoNotChangeBits) {
  uint64_t seed = 900;
  for (const DeltaShape& shape : kDeltaShapes) {
    for (const DType type : testing_support::kAllTypes) expect_same_in_calls(seed += 10, shape, type, {64, 128, 1, 1});
  }
  expect_same_in_calls(seed, kDeltaShapes[2], DType::kBF16, {64, kDeltaPartRows, 6});
}

TEST_P(DeltaChunksTest, MovesTheConvolutionState) {
  const DeltaShape shape = kDeltaShapes[2];
  const int64_t channels = shape.channels(), padded = channels + 5;
  for (const DType type : testing_support::kAllTypes) {
    for (const int64_t rows : {1, 2, 3, 70}) {
      const Chunked before = random_before(1, shape, type);
      const std::vector<float> m = random_m(2, shape, rows, type);
      std::vector<float> all = before.conv;
      for (int64_t row = 0; row < rows; ++row) {
        all.insert(all.end(), m.begin() + row * padded, m.begin() + row * padded + channels);
      }
      expect_same_bits(chunks(shape, before, random_tokens(3, shape, rows), m, type).conv,
                       chosen_rows(all, channels, ascending(rows, 3)), str(rows, " rows of ", dtype_name(type)));
    }
  }
}

}  // namespace
}  // namespace headrace
