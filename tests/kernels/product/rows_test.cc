// Products of quantised weights for every number of rows that a step may have, where they are divided among launches,
// and where pointers are not aligned as CUDA's kernel for them needs (kernels/product/packed.cc).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/product/op.h"
#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"
#include "tests/support/weight_blocks.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;

constexpr int64_t kStepRows = 384;

class RowsProductTest : public testing_support::KernelTest {
 protected:
  // Elements of the product's type that arrays have in front of what the product gets.
  struct Offsets {
    int64_t x = 0, out = 0;  // out: bias and residual, too
  };
  bool cuda() { return stream().backend() == Backend::kCuda; }

  DeviceArray store(int64_t n, int64_t k) {
    const DeviceArray from = upload(testing_support::random_blocks(WeightType::kQ4K, 1, n, k));
    DeviceArray stored = output(stored_weight_bytes(stream().backend(), WeightType::kQ4K, n, k));
    store_weight({.blocks = from.data(),
                  .type = WeightType::kQ4K,
                  .out = stored.data(),
                  .rows = n,
                  .cols = k,
                  .row_begin = 0,
                  .row_end = n},
                 stream());
    download(stored);  // waits before the blocks go
    return stored;
  }

  // In bf16 to f32, without the elements in front.
  std::vector<std::byte> run(const Weight& weight, const std::vector<float>& x, const std::vector<float>& bias,
                             int64_t rows, const Offsets& offsets) {
    const int64_t n = weight.rows(), k = weight.cols;
    const auto behind = [&](const std::vector<float>& values, int64_t offset) {
      std::vector<float> all(static_cast<size_t>(offset));
      all.insert(all.end(), values.begin(), values.end());
      return all;
    };
    const std::vector<float> x_rows(x.begin(), x.begin() + rows * k), residual(static_cast<size_t>(rows * n), 0.25f);
    const DeviceArray x_array = upload(behind(x_rows, offsets.x), DType::kBF16),
                      bias_array = upload(behind(bias, offsets.out), DType::kBF16),
                      residual_array = upload(behind(residual, offsets.out), DType::kF32);
    const DeviceArray out = output(static_cast<uint64_t>(rows * n + offsets.out) * 4);
    product({.x = x_array.as<bf16>() + offsets.x,
             .weight = weight,
             .bias = bias_array.as<bf16>() + offsets.out,
             .residual = residual_array.as<float>() + offsets.out,
             .out = out.as<float>() + offsets.out,
             .type = DType::kBF16,
             .out_type = DType::kF32,
             .rows = rows,
             .n = n,
             .k = k,
             .path = ProductPath::kDecode},
            stream());
    const std::vector<std::byte> all = download(out);
    return {all.begin() + offsets.out * 4, all.end()};
  }
};
INSTANTIATE_KERNEL_TEST(RowsProductTest);

std::vector<float> values_of_bf16(uint64_t seed, int64_t count) {
  return testing_support::rounded(testing_support::random_values(seed, count), DType::kBF16);
}

// docs/design.md, section 6, rule 1.
TEST_P(RowsProductTest, EveryNumberOfRowsGivesARowTheSameBits) {
  constexpr int64_t kN = 50, kK = 512;
  const int64_t step = cuda() ? 1 : testing::kSanitized ? 61 : 7;
  const DeviceArray stored = store(kN, kK);
  const Weight weight = {.parts = {{stored.data(), WeightType::kQ4K, kN}, {}, {}}, .count = 1, .cols = kK};
  const std::vector<float> x = values_of_bf16(1, kStepRows * kK), bias = values_of_bf16(2, kN);
  const std::vector<std::byte> all = run(weight, x, bias, kStepRows, {});
  for (int64_t rows = 1; rows < kStepRows; rows += step) {
    const std::vector<std::byte> some = run(weight, x, bias, rows, {});
    EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size()), 0) << rows << " rows";
  }
}

// The widest matrix whose k CUDA divides in four: the sums of the runs have room for a few hundred rows at most, so
// more rows take several launches.
TEST_P(RowsProductTest, RowsOfSeveralLaunchesHaveTheBitsOfOne) {
  constexpr int64_t kK = 512;
  const int64_t n = cuda() ? 16896 : 96;
  const DeviceArray stored = store(n, kK);
  const Weight weight = {.parts = {{stored.data(), WeightType::kQ4K, n}, {}, {}}, .count = 1, .cols = kK};
  const std::vector<float> x = values_of_bf16(1, kStepRows * kK), bias = values_of_bf16(2, n);
  const std::vector<std::byte> all = run(weight, x, bias, kStepRows, {});
  for (const int64_t rows : {1, 16, 17, 64, 70, 127, 128, 129, 191, 192, 200, 256, 300, 383}) {
    if (testing::kSanitized && rows > 70) break;
    const std::vector<std::byte> some = run(weight, x, bias, rows, {});
    EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size()), 0) << rows << " rows";
  }
  for (const int64_t first : {63, 64, 127, 128, 191, 192, 383}) {
    const std::vector<std::byte> one = run(weight, {x.begin() + first * kK, x.end()}, bias, 1, {});
    EXPECT_EQ(std::memcmp(one.data(), all.data() + first * n * 4, one.size()), 0) << "row " << first;
  }
}

// On CUDA another kernel takes a product whose x or weights are not aligned; it rounds weights. The other pointers may
// be anywhere.
TEST_P(RowsProductTest, UnalignedPointersGiveTheSameProduct) {
  constexpr int64_t kUpper = 32, kLower = 8, kN = kUpper + kLower, kK = 256;
  const DeviceArray stored = store(kUpper, kK);
  const std::vector<float> lower = values_of_bf16(4, kLower * kK + 1), bias = values_of_bf16(2, kN);
  const std::vector<float> x = values_of_bf16(1, 40 * kK);
  const DeviceArray plain = upload(std::vector<float>(lower.begin() + 1, lower.end()), DType::kBF16),
                    plain_behind_one = upload(lower, DType::kBF16);
  const auto weight = [&](const bf16* plain_rows) {
    return Weight{.parts = {{stored.data(), WeightType::kQ4K, kUpper}, {plain_rows, WeightType::kBF16, kLower}, {}},
                  .count = 2,
                  .cols = kK};
  };
  std::vector<float> w =
      testing_support::weights_of(WeightType::kQ4K, testing_support::random_blocks(WeightType::kQ4K, 1, kUpper, kK));
  if (cuda()) w = testing_support::rounded(w, DType::kBF16);
  w.insert(w.end(), lower.begin() + 1, lower.end());
  for (const int64_t rows : {1, 9, 40}) {
    const std::vector<std::byte> aligned = run(weight(plain.as<bf16>()), x, bias, rows, {});
    EXPECT_TRUE(run(weight(plain.as<bf16>()), x, bias, rows, {.out = 1}) == aligned) << rows << " rows";
    std::vector<double> expected, magnitude;
    for (int64_t i = 0; i < rows * kN; ++i) {
      double sum = static_cast<double>(bias[static_cast<size_t>(i % kN)]) + 0.25, absolute = std::fabs(sum);
      for (int64_t j = 0; j < kK; ++j) {
        const double term = static_cast<double>(x[static_cast<size_t>(i / kN * kK + j)]) *
                            static_cast<double>(w[static_cast<size_t>(i % kN * kK + j)]);
        sum += term;
        absolute += std::fabs(term);
      }
      expected.push_back(sum);
      magnitude.push_back(absolute);
    }
    for (const auto& got : {run(weight(plain.as<bf16>()), x, bias, rows, {.x = 1}),
                            run(weight(plain_behind_one.as<bf16>() + 1), x, bias, rows, {}),
                            run(weight(plain_behind_one.as<bf16>() + 1), x, bias, rows, {.x = 3, .out = 5})}) {
      if (!cuda()) {
        EXPECT_TRUE(got == aligned) << rows << " rows";
        continue;
      }
      testing_support::expect_close(testing_support::decode(got, DType::kF32), expected, magnitude, DType::kF32,
                                    str(rows, " rows"));
    }
  }
}

}  // namespace
}  // namespace headrace
