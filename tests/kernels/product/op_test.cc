#include "kernels/product/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::expect_close;
using testing_support::kAllTypes;
using testing_support::random_values;
using testing_support::rounded;

struct Case {
  int64_t rows, n, k;
  DType type, out_type;
  bool bias = false, residual = false, in_place = false;

  std::string name() const {
    return str(rows, " x ", n, " x ", k, " ", dtype_name(type), " to ", dtype_name(out_type), bias ? ", bias" : "",
               residual ? ", residual" : "", in_place ? " in place" : "");
  }
};

size_t at(int64_t row, int64_t stride, int64_t col) { return static_cast<size_t>(row * stride + col); }

class ProductTest : public testing_support::KernelTest {
 protected:
  // Runs the op on fresh arrays; rows padded as kernels/product/op.h asks.
  std::vector<std::byte> run(const Case& c, const std::vector<float>& x, const std::vector<float>& w,
                             const std::vector<float>& bias, const std::vector<float>& residual);
  void check(const Case& c);
};
INSTANTIATE_KERNEL_TEST(ProductTest);

std::vector<float> padded(std::vector<float> values, int64_t rows, int64_t stride) {
  values.resize(static_cast<size_t>(padded_rows(rows) * stride));
  return values;
}

std::vector<std::byte> ProductTest::run(const Case& c, const std::vector<float>& x, const std::vector<float>& w,
                                        const std::vector<float>& bias, const std::vector<float>& residual) {
  const bool is_cuda = stream().backend() == Backend::kCuda;
  const DeviceArray x_array = upload(is_cuda ? padded(x, c.rows, c.k) : x, c.type);
  const DeviceArray w_array = upload(w, c.type);
  const DeviceArray bias_array = upload(bias, c.type);
  const DeviceArray residual_array = upload(is_cuda ? padded(residual, c.rows, c.n) : residual, c.out_type);
  const int64_t out_rows = is_cuda ? padded_rows(c.rows) : c.rows;
  const DeviceArray out_array = output(static_cast<uint64_t>(out_rows * c.n) * dtype_bytes(c.out_type));
  ProductParams params{};
  params.x = x_array.data();
  params.weight = plain_weight(w_array.data(), c.type, c.n, c.k);
  params.bias = c.bias ? bias_array.data() : nullptr;
  params.residual = c.residual ? residual_array.data() : nullptr;
  params.out = c.in_place ? residual_array.data() : out_array.data();
  params.type = c.type;
  params.out_type = c.out_type;
  params.rows = c.rows;
  params.n = c.n;
  params.k = c.k;
  params.path = c.rows > kProductRowPadding ? ProductPath::kPrefill : ProductPath::kDecode;
  product(params, stream());
  std::vector<std::byte> out = download(c.in_place ? residual_array : out_array);
  out.resize(static_cast<size_t>(c.rows * c.n) * dtype_bytes(c.out_type));
  download(x_array);  // their guards
  download(w_array);
  return out;
}

void ProductTest::check(const Case& c) {
  const std::vector<float> x = rounded(random_values(1, c.rows * c.k), c.type);
  const std::vector<float> w = rounded(random_values(2, c.n * c.k, 0.1f), c.type);
  const std::vector<float> bias = rounded(random_values(3, c.n), c.type);
  const std::vector<float> residual = rounded(random_values(4, c.rows * c.n), c.out_type);
  std::vector<double> expected, magnitude;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t col = 0; col < c.n; ++col) {
      const float* x_row = x.data() + row * c.k;
      const float* w_row = w.data() + col * c.k;
      const double b = c.bias ? bias[at(0, 0, col)] : 0, r = c.residual ? residual[at(row, c.n, col)] : 0;
      double sum = b + r, absolute = std::fabs(b) + std::fabs(r);
      for (int64_t i = 0; i < c.k; ++i) {
        const double term = static_cast<double>(x_row[i]) * w_row[i];
        sum += term;
        absolute += std::fabs(term);
      }
      expected.push_back(sum);
      magnitude.push_back(absolute);
    }
  }
  const auto out = run(c, x, w, bias, residual);
  expect_close(testing_support::decode(out, c.out_type), expected, magnitude, c.out_type, c.name());
}

TEST_P(ProductTest, OddShapes) {
  const int64_t columns[] = {1, 2, 5, 47, 49, 97}, row_counts[] = {1, 4, 7, 25};
  for (DType type : kAllTypes) {
    int turn = 0;  // every k with three pairs of n and rows, in turn
    for (int64_t k : {1, 2, 3, 15, 16, 17, 31, 33, 63, 65, 129, 577}) {
      for (int i = 0; i < 3; ++i, ++turn) check({row_counts[turn % 4], columns[turn % 6], k, type, type});
    }
  }
}

TEST_P(ProductTest, EpiloguesAndOutputTypes) {
  for (DType type : kAllTypes) {
    for (int64_t rows : {1, 3, 29}) {
      check({rows, 61, 70, type, DType::kF32});
      check({rows, 61, 70, type, DType::kF32, true});
      check({rows, 61, 70, type, type, true});
      check({rows, 61, 70, type, type, false, true});
      check({rows, 61, 70, type, type, true, true});
      check({rows, 61, 70, type, type, true, true, true});
      check({rows, 61, 70, type, DType::kF32, false, true});
      check({rows, 61, 70, type, DType::kF32, false, true, true});
      check({rows, 61, 70, type, DType::kF32, true, true, true});
    }
  }
}

TEST_P(ProductTest, ShapesOfSmolLm2) {
  for (DType type : kAllTypes) {
    if (testing::kSanitized && type != DType::kBF16) continue;  // OddShapes has the others' bodies
    check({2, 960, 576, type, type});
    check({7, 576, 1536, type, type, false, true, true});
    check({1, 3072, 576, type, type});
    check({5, 576, 576, type, DType::kF32, false, true, true});
    check({60, 576, 1536, type, DType::kF32, false, true, true});
    check({2, 576, 1536, type, DType::kF32, true, true, true});
  }
  EXPECT_EQ(plain_products(stream()), std::vector<std::string>());  // the library has an algorithm for each
}

// Every size of group that prefill is cut into, the last of them not full.
TEST_P(ProductTest, GroupsOfPrefill) {
  for (DType type : kAllTypes) {
    check({2048 + 512 + 64 + 3, 40, 64, type, type, false, true, true});
    check({600, 72, 48, type, type, true, true});
    check({600, 72, 48, type, DType::kF32, true});
    check({512, 136, 264, type, type, true});
    check({70, 33, 96, type, type, true, true});
    check({64, 600, 32, type, DType::kF32, true});
  }
  // More columns than the CUDA body's buffer of sums has; nothing of the kind on the CPU.
  if (stream().backend() == Backend::kCuda) check({2048, 4168, 8, DType::kBF16, DType::kBF16, true, true, true});
}

TEST_P(ProductTest, NoRowsIsNoWork) {
  const DeviceArray some = upload(std::vector<float>(16, 1.0f), DType::kF32);
  const DeviceArray out = output(16 * 4);
  ProductParams params{};
  params.x = some.data();
  params.weight = plain_weight(some.data(), DType::kF32, 4, 4);
  params.out = out.data();
  params.type = params.out_type = DType::kF32;
  params.n = params.k = 4;
  product(params, stream());
  for (std::byte value : download(out)) EXPECT_EQ(value, std::byte{0xff});
}

// docs/design.md, section 6, rules 1 and 4: a row's bits depend neither on how many rows ride along, nor on its place,
// nor on its neighbours, nor on the threads.
class ProductInvarianceTest : public ProductTest {
 protected:
  void expect_same_bits(int64_t n, int64_t k, DType type, DType out_type);
};
INSTANTIATE_KERNEL_TEST(ProductInvarianceTest);

void ProductInvarianceTest::expect_same_bits(int64_t n, int64_t k, DType type, DType out_type) {
  constexpr int64_t kRows = 300;
  const std::vector<float> x = random_values(11, kRows * k), w = random_values(12, n * k);
  const std::vector<float> bias = random_values(13, n), residual = random_values(14, kRows * n);
  const auto rows_of = [](const std::vector<float>& all, int64_t begin, int64_t count, int64_t stride) {
    return std::vector<float>(all.begin() + begin * stride, all.begin() + (begin + count) * stride);
  };
  const auto run_rows = [&](int64_t begin, int64_t count) {
    return run({count, n, k, type, out_type, true, true}, rows_of(x, begin, count, k), w, bias,
               rows_of(residual, begin, count, n));
  };
  const std::vector<std::byte> all = run_rows(0, kRows);
  const size_t row_bytes = static_cast<size_t>(n) * dtype_bytes(out_type);
  const auto expect_equal = [&](const std::vector<std::byte>& got, int64_t begin, const std::string& what) {
    EXPECT_EQ(std::memcmp(got.data(), all.data() + static_cast<size_t>(begin) * row_bytes, got.size()), 0)
        << what << ", n=" << n << " k=" << k << " " << dtype_name(type) << " to " << dtype_name(out_type);
  };
  for (int64_t rows = 1; rows <= kRows; rows += rows < 30 ? 1 : 45)
    expect_equal(run_rows(0, rows), 0, str(rows, " rows"));
  for (int64_t begin = 0; begin < 64; ++begin) expect_equal(run_rows(begin, 1), begin, str("row ", begin, " alone"));
  for (int64_t begin = 1; begin < 60; begin += 7) {  // the same rows in other places, among other neighbours
    expect_equal(run_rows(begin, 64), begin, str("64 rows from ", begin));
  }
  for (int threads : {1, 3, 4}) {
    open(threads);
    expect_equal(run_rows(0, kRows), 0, str(threads, " threads"));
    expect_equal(run_rows(5, 1), 5, str("a row alone, ", threads, " threads"));
  }
  open(2);
}

TEST_P(ProductInvarianceTest, EveryNumberOfRowsPlaceAndThread) {
  for (DType type : kAllTypes) {
    expect_same_bits(53, 67, type, type);
    expect_same_bits(16, 576, type, type);
    if (type != DType::kF32) expect_same_bits(16, 576, type, DType::kF32);
  }
}

// The same in a large group: 512 rows, then each of them 37 places further on.
TEST_P(ProductInvarianceTest, EveryPlaceInALargeGroup) {
  constexpr int64_t kRows = 512, kN = 96, kK = 128, kShift = 37;
  for (DType type : kAllTypes) {
    std::vector<float> x = random_values(31, kRows * kK), residual = random_values(32, kRows * kN);
    const std::vector<float> w = random_values(33, kN * kK), bias = random_values(34, kN);
    const Case c = {kRows, kN, kK, type, type, true, true};
    std::vector<std::byte> all = run(c, x, w, bias, residual);
    std::rotate(x.begin(), x.end() - kShift * kK, x.end());
    std::rotate(residual.begin(), residual.end() - kShift * kN, residual.end());
    std::rotate(all.begin(), all.end() - kShift * kN * static_cast<int64_t>(dtype_bytes(type)), all.end());
    EXPECT_EQ(run(c, x, w, bias, residual), all) << dtype_name(type);
  }
}

// A column's bits do not depend on where the columns are cut either: w's rows alone and among others.
TEST_P(ProductInvarianceTest, EveryColumnAlone) {
  constexpr int64_t kN = 53, kK = 75, kRows = 9;
  for (DType type : kAllTypes) {
    const std::vector<float> x = random_values(21, kRows * kK), w = random_values(22, kN * kK);
    const auto all = run({kRows, kN, kK, type, DType::kF32}, x, w, {}, {});
    for (int64_t col = 0; col < kN; ++col) {
      const std::vector<float> one(w.begin() + col * kK, w.begin() + (col + 1) * kK);
      const auto alone = run({kRows, 1, kK, type, DType::kF32}, x, one, {}, {});
      for (int64_t row = 0; row < kRows; ++row) {
        ASSERT_EQ(std::memcmp(alone.data() + row * 4, all.data() + at(row, kN, col) * 4, 4), 0)
            << "row " << row << " col " << col << " " << dtype_name(type);
      }
    }
  }
}

TEST(ProductDeathTest, WrongShapes) {
  ProductParams params{};
  float value = 0;
  params.x = &value;
  params.weight = plain_weight(&value, DType::kF16, 1, 1);
  params.out = &params;
  params.rows = params.n = params.k = 1;
  params.type = DType::kF16;
  params.out_type = DType::kBF16;
  struct NoStream : Stream {
    NoStream() : Stream(Backend::kCpu) {}
    void record(Event&) override {}
    void wait(const Event&) override {}
    void synchronize() override {}
    void check() override {}
    void* native() const override { return nullptr; }
    void copy_bytes(void*, const void*, size_t, Link) override {}
  } stream;
  EXPECT_DEATH(product(params, stream), "out_type=bf16 type=f16");
  params.out_type = DType::kF32;
  params.norm = {.weight = &value, .x_type = DType::kBF16, .eps = 0, .room = &value};
  EXPECT_DEATH(product(params, stream), "x of type bf16 in a product of type f16");
  params.norm = {};
  params.k = 0;
  EXPECT_DEATH(product(params, stream), "k=0");
}

}  // namespace
}  // namespace headrace
