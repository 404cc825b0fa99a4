// Products of quantised weights: to the bit those of the same weights unpacked, whatever the number of rows and threads
// (docs/design.md, section 6, rule 8).
#include <gtest/gtest.h>

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
using testing_support::kAllTypes;
using testing_support::kQuantisedTypes;
using testing_support::random_blocks;
using testing_support::random_values;

class BlocksProductTest : public testing_support::KernelTest {
 protected:
  std::vector<std::byte> run(const Weight& weight, DType type, DType out_type, const std::vector<float>& x,
                             int64_t rows);
  // Products of the weight in blocks and of the same weight unpacked.
  void check(const Weight& blocks, DType type, const std::string& what);
};
INSTANTIATE_KERNEL_TEST(BlocksProductTest);

std::vector<std::byte> BlocksProductTest::run(const Weight& weight, DType type, DType out_type,
                                              const std::vector<float>& x, int64_t rows) {
  const int64_t n = weight.rows(), k = weight.cols;
  const DeviceArray x_array = upload(std::vector<float>(x.begin(), x.begin() + rows * k), type);
  const DeviceArray bias = upload(random_values(2, n), type), residual = upload(random_values(3, rows * n), type);
  const DeviceArray out = output(static_cast<uint64_t>(rows * n) * dtype_bytes(out_type));
  product({.x = x_array.data(),
           .weight = weight,
           .bias = bias.data(),
           .residual = out_type == type ? residual.data() : nullptr,
           .out = out.data(),
           .type = type,
           .out_type = out_type,
           .rows = rows,
           .n = n,
           .k = k,
           .path = ProductPath::kDecode},
          stream());
  return download(out);
}

void BlocksProductTest::check(const Weight& blocks, DType type, const std::string& what) {
  const int64_t n = blocks.rows(), k = blocks.cols;
  const DeviceArray unpacked = output(static_cast<uint64_t>(n * k) * dtype_bytes(type));
  dequantise({.weight = blocks, .ids = nullptr, .first_row = 0, .rows = n, .type = type, .out = unpacked.data()},
             stream());
  const Weight plain = plain_weight(unpacked.data(), type, n, k);
  const std::vector<float> x = random_values(1, 29 * k);
  for (const int64_t rows : {1, 2, 6, 7, 29}) {
    EXPECT_TRUE(run(blocks, type, type, x, rows) == run(plain, type, type, x, rows))
        << what << " as " << dtype_name(type) << ", " << rows << " rows";
  }
  EXPECT_TRUE(run(blocks, type, DType::kF32, x, 3) == run(plain, type, DType::kF32, x, 3)) << what << " to f32";
}

TEST_P(BlocksProductTest, HaveTheBitsOfUnpackedWeights) {
  if (stream().backend() == Backend::kCuda) GTEST_SKIP() << "tested with the CUDA bodies";
  for (const WeightType type : kQuantisedTypes) {
    const int64_t block = weight_type_info(type).block_elements;
    int64_t turn = 0;
    for (const int64_t n : {3, 98}) {
      const int64_t k = block * (1 + turn++ * 3 % (block > 32 ? 4 : 9));
      const DeviceArray stored = upload(random_blocks(type, static_cast<uint64_t>(n), n, k));
      const Weight weight = {.parts = {{stored.data(), type, n}, {}, {}}, .count = 1, .cols = k};
      for (const DType compute : kAllTypes) check(weight, compute, str(weight_type_info(type).name, " ", n, " x ", k));
    }
  }
}

// More columns than are unpacked at a time, three parts (one of them plain) and every number of threads.
TEST_P(BlocksProductTest, PartsAndThreadsChangeNoBit) {
  if (stream().backend() == Backend::kCuda) GTEST_SKIP() << "tested with the CUDA bodies";
  const int64_t k = testing::kSanitized ? 256 : 1536;
  for (const DType compute : kAllTypes) {
    std::vector<std::byte> first;
    for (const int threads : {1, 2, 3}) {
      open(threads);
      const DeviceArray a = upload(random_blocks(WeightType::kQ4K, 1, 75, k)),
                        b = upload(random_values(2, 34 * k), compute),
                        c = upload(random_blocks(WeightType::kQ8_0, 3, 41, k));
      const Weight weight = {.parts = {{a.data(), WeightType::kQ4K, 75},
                                       {b.data(), plain_weight_type(compute), 34},
                                       {c.data(), WeightType::kQ8_0, 41}},
                             .count = 3,
                             .cols = k};
      check(weight, compute, str(threads, " threads"));
      const std::vector<std::byte> out = run(weight, compute, compute, random_values(4, 2 * k), 2);
      if (first.empty()) first = out;
      EXPECT_TRUE(out == first) << threads << " threads, " << dtype_name(compute);
    }
  }
  open(2);
}

}  // namespace
}  // namespace headrace
