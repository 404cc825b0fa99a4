// Conversion to 8 bits and its product against plain loops: the same integers and scales, so the same bits, on each
// backend and with each instruction set; and against the product of the values themselves.
#include "kernels/int8/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"
#include "tests/support/weight_blocks.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::encode;
using testing_support::kAllTypes;
using testing_support::kQuantisedTypes;
using testing_support::random_blocks;
using testing_support::random_values;
using testing_support::rounded;
using testing_support::weights_of;

size_t at(int64_t value) { return static_cast<size_t>(value); }

// ---- Plain loops ----------------------------------------------------------------------------------------------------

struct PlainRows {
  std::vector<int32_t> q;  // [rows, cols]
  std::vector<float> scales;
};

void rotate_plainly(float* row, int64_t cols) {
  const int64_t block = rotation_block(cols);
  for (int64_t apart = 1; apart < block; apart *= 2) {
    for (int64_t i = 0; i < cols; ++i) {
      if ((i & apart) != 0) continue;
      const float a = row[i], b = row[i + apart];
      row[i] = a + b;
      row[i + apart] = a - b;
    }
  }
}

PlainRows quantise_plainly(std::vector<float> values, int64_t cols) {
  PlainRows rows{std::vector<int32_t>(values.size()), {}};
  for (size_t first = 0; first < values.size(); first += at(cols)) {
    float* const row = values.data() + first;
    rotate_plainly(row, cols);
    float top = 0;
    bool finite = true;
    for (int64_t i = 0; i < cols; ++i) {
      finite = finite && std::isfinite(row[i]);
      top = std::max(top, std::fabs(row[i]));
    }
    const bool tiny = top < kTinyInt8Row;
    rows.scales.push_back(!finite ? std::numeric_limits<float>::quiet_NaN() : tiny ? 0.0f : top / 127.0f);
    if (!finite || tiny) continue;
    const float inverse = 127.0f / top;
    for (int64_t i = 0; i < cols; ++i) rows.q[first + at(i)] = static_cast<int32_t>(std::nearbyint(row[i] * inverse));
  }
  return rows;
}

struct Added {
  std::vector<float> bias, residual;  // or empty
};

std::vector<float> multiply_plainly(const PlainRows& x, const PlainRows& w, int64_t cols, DType type,
                                    const Added& added = {}) {
  const size_t rows = x.scales.size(), n = w.scales.size();
  const float unrotate = 1.0f / static_cast<float>(rotation_block(cols));
  std::vector<float> out(rows * n);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < n; ++col) {
      int64_t sum = 0;
      const int32_t *const a = x.q.data() + row * at(cols), *const b = w.q.data() + col * at(cols);
      for (int64_t i = 0; i < cols; ++i) sum += a[i] * b[i];
      float y = static_cast<float>(sum) * (x.scales[row] * w.scales[col] * unrotate);
      if (!added.bias.empty()) y += added.bias[col];
      if (!added.residual.empty()) y += added.residual[row * n + col];
      out[row * n + col] = y;
    }
  }
  return rounded(out, type);
}

// ---- The ops --------------------------------------------------------------------------------------------------------

class Int8Test : public testing_support::KernelTest {
 protected:
  struct Converted {
    DeviceArray values, scales;
    int64_t rows;
    Int8Rows view() const { return {values.as<int8_t>(), scales.as<float>()}; }
  };
  Converted room(int64_t rows, int64_t cols) {
    return {output(int8_values_bytes(stream().backend(), rows, cols)), output(at(rows) * sizeof(float)), rows};
  }

  Converted activation(const std::vector<float>& x, int64_t cols, DType type) {
    const DeviceArray in = upload(x, type);
    Int8ActivationParams params{};
    params.x = in.data();
    params.type = type;
    params.rows = static_cast<int64_t>(x.size()) / cols;
    params.cols = cols;
    return convert(params);
  }
  Converted convert(Int8ActivationParams params) {
    Converted to = room(params.rows, params.cols);
    params.out = to.view();
    int8_activation(params, stream());
    download(to.values);  // its guards; waits
    return to;
  }

  Converted weight(const Weight& from, DType type) {
    Converted to = room(from.rows(), from.cols);
    int8_weight({from, type, to.view()}, stream());
    download(to.values);
    return to;
  }
  Converted plain_matrix(const std::vector<float>& w, int64_t cols, DType type) {
    const DeviceArray in = upload(w, type);
    return weight(plain_weight(in.data(), type, static_cast<int64_t>(w.size()) / cols, cols), type);
  }
  DeviceArray store(WeightType type, const std::vector<std::byte>& blocks, int64_t rows, int64_t cols) {
    DeviceArray to = output(stored_weight_bytes(stream().backend(), type, rows, cols));
    const DeviceArray from = upload(blocks);
    store_weight({from.data(), type, to.data(), rows, cols, 0, rows}, stream());
    download(from);
    return to;
  }

  std::vector<float> multiply(const Converted& x, const Converted& w, int64_t k, DType type, const Added& added = {}) {
    const DeviceArray bias = upload(added.bias, type), residual = upload(added.residual, type);
    const DeviceArray out = output(at(x.rows * w.rows) * dtype_bytes(type));
    Int8ProductParams params = product_of(x, w, k, type, out.data());
    params.bias = added.bias.empty() ? nullptr : bias.data();
    params.residual = added.residual.empty() ? nullptr : residual.data();
    int8_product(params, stream());
    return download(out, type);
  }
  static Int8ProductParams product_of(const Converted& x, const Converted& w, int64_t k, DType type, void* out) {
    Int8ProductParams params{};
    params.x = x.view();
    params.weight = w.view();
    params.out = out;
    params.type = type;
    params.rows = x.rows;
    params.n = w.rows;
    params.k = k;
    return params;
  }

  void expect_scales(const Converted& converted, const PlainRows& plain, const std::string& what) {
    EXPECT_EQ(encode(download(converted.scales, DType::kF32), DType::kF32), encode(plain.scales, DType::kF32)) << what;
  }
};
INSTANTIATE_KERNEL_TEST(Int8Test);

void expect_same(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i])))
        << what << ": element " << i << " is " << actual[i] << ", expected " << expected[i];
  }
}

struct Shape {
  int64_t rows, n, k;
};
// Tiles of every size with remainders; columns that are not rotated, rotated by 64, kept by a block of CUDA's threads
// and too many for that.
constexpr Shape kShapes[] = {{1, 1, 64},     {3, 37, 96},    {17, 53, 128},  {300, 70, 576}, {65, 129, 192},
                             {6, 40, 1536},  {2, 33, 4096},  {1, 17, 14336}, {5, 300, 320},  {129, 257, 64},
                             {9, 64, 100},   {4, 5, 7},      {31, 16, 1},    {2, 3, 20480},  {3, 7, 16448},
                             {64, 600, 256}, {130, 260, 512}};

TEST_P(Int8Test, EqualsPlainLoops) {
  uint64_t seed = 1;
  for (const Shape& shape : kShapes) {
    for (const DType type : kAllTypes) {
      const std::string what = str(shape.rows, " rows, ", shape.n, " x ", shape.k, " ", dtype_name(type));
      const std::vector<float> x = rounded(random_values(++seed, shape.rows * shape.k), type);
      const std::vector<float> w = rounded(random_values(++seed, shape.n * shape.k, 0.05f), type);
      const Added added = {rounded(random_values(++seed, shape.n), type),
                           rounded(random_values(++seed, shape.rows * shape.n), type)};
      const PlainRows plain_x = quantise_plainly(x, shape.k), plain_w = quantise_plainly(w, shape.k);
      const Converted in = activation(x, shape.k, type), weights = plain_matrix(w, shape.k, type);
      expect_scales(in, plain_x, what);
      expect_scales(weights, plain_w, what);
      expect_same(multiply(in, weights, shape.k, type), multiply_plainly(plain_x, plain_w, shape.k, type), what);
      expect_same(multiply(in, weights, shape.k, type, added), multiply_plainly(plain_x, plain_w, shape.k, type, added),
                  str(what, ", added"));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(Int8Test, ReadsEveryWeightType) {
  for (const WeightType type : kQuantisedTypes) {
    const int64_t n = 53, k = 3 * 256 + weight_type_info(type).block_elements;
    const std::vector<std::byte> blocks = random_blocks(type, 3, n, k);
    const std::string what = weight_type_info(type).name;
    const PlainRows plain_w = quantise_plainly(weights_of(type, blocks), k);
    const DeviceArray stored = store(type, blocks, n, k);
    const Converted weights = weight({{{stored.data(), type, n}, {}, {}}, 1, k}, DType::kBF16);
    expect_scales(weights, plain_w, what);
    const std::vector<float> x = random_values(5, 9 * k);
    expect_same(multiply(activation(x, k, DType::kF32), weights, k, DType::kF32),
                multiply_plainly(quantise_plainly(x, k), plain_w, k, DType::kF32), what);
  }
}

TEST_P(Int8Test, PartsAreOneMatrix) {
  constexpr int64_t kCols = 512, kFirst = 37, kSecond = 16, kThird = 21;
  const std::vector<std::byte> a = random_blocks(WeightType::kQ4K, 1, kFirst, kCols);
  const std::vector<std::byte> c = random_blocks(WeightType::kQ6K, 2, kThird, kCols);
  const std::vector<float> b = rounded(random_values(3, kSecond * kCols), DType::kBF16);
  const DeviceArray stored_a = store(WeightType::kQ4K, a, kFirst, kCols), stored_b = upload(b, DType::kBF16),
                    stored_c = store(WeightType::kQ6K, c, kThird, kCols);
  const Weight all = {{{stored_a.data(), WeightType::kQ4K, kFirst},
                       {stored_b.data(), WeightType::kBF16, kSecond},
                       {stored_c.data(), WeightType::kQ6K, kThird}},
                      3,
                      kCols};
  std::vector<float> values = weights_of(WeightType::kQ4K, a), last = weights_of(WeightType::kQ6K, c);
  values.insert(values.end(), b.begin(), b.end());
  values.insert(values.end(), last.begin(), last.end());
  const PlainRows plain_w = quantise_plainly(values, kCols);
  const Converted weights = weight(all, DType::kBF16);
  expect_scales(weights, plain_w, "parts");
  const std::vector<float> x = random_values(5, 3 * kCols);
  expect_same(multiply(activation(x, kCols, DType::kF32), weights, kCols, DType::kF32),
              multiply_plainly(quantise_plainly(x, kCols), plain_w, kCols, DType::kF32), "parts");
}

// Sums as large as can be, of either sign.
TEST_P(Int8Test, LargestSumsFit) {
  for (const int64_t k : {8191, 131071}) {
    std::vector<float> x(at(3 * k), 1.0f), w(at(2 * k), -1.0f);
    std::fill(x.begin() + k, x.begin() + 2 * k, -1.0f);
    for (int64_t i = 0; i < k; i += 2) x[at(2 * k + i)] = -1.0f;
    expect_same(multiply(activation(x, k, DType::kF32), plain_matrix(w, k, DType::kF32), k, DType::kF32),
                multiply_plainly(quantise_plainly(x, k), quantise_plainly(w, k), k, DType::kF32), str("k=", k));
  }
}

TEST_P(Int8Test, RowsOfZerosAndOfNoNumbers) {
  constexpr int64_t kRows = 8, kCols = 192, kN = 20;
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = random_values(1, kRows * kCols), w = random_values(2, kN * kCols);
  const auto fill = [](std::vector<float>& values, int64_t row, float value) {
    std::fill(values.begin() + row * kCols, values.begin() + (row + 1) * kCols, value);
  };
  fill(x, 1, 0.0f);
  fill(x, 2, -0.0f);
  fill(x, 3, 0x1p-140f);  // tiny
  x[at(4 * kCols + 70)] = kNan;
  x[at(5 * kCols + 191)] = -kInf;
  fill(x, 6, 3e38f);  // overflows in the rotation
  fill(w, 3, 0.0f);
  w[at(7 * kCols)] = kNan;
  w[at(19 * kCols + 5)] = kInf;
  const PlainRows plain_x = quantise_plainly(x, kCols), plain_w = quantise_plainly(w, kCols);
  const Converted in = activation(x, kCols, DType::kF32), weights = plain_matrix(w, kCols, DType::kF32);
  expect_scales(in, plain_x, "x");
  expect_scales(weights, plain_w, "w");
  const std::vector<float> out = multiply(in, weights, kCols, DType::kF32);
  expect_same(out, multiply_plainly(plain_x, plain_w, kCols, DType::kF32), "out");
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kN; ++col) {
      const bool bad = row == 4 || row == 5 || row == 6 || col == 7 || col == 19;
      EXPECT_EQ(std::isnan(out[at(row * kN + col)]), bad) << row << " " << col;
    }
  }
}

TEST_P(Int8Test, TheResidualMayBeTheOutput) {
  constexpr int64_t kRows = 150, kN = 300, kCols = 256;
  for (const DType type : kAllTypes) {
    const Converted x = activation(random_values(1, kRows * kCols), kCols, type);
    const Converted w = plain_matrix(random_values(2, kN * kCols), kCols, type);
    const Added added = {{}, rounded(random_values(3, kRows * kN, 50.0f), type)};
    const DeviceArray out = upload(added.residual, type);
    Int8ProductParams params = product_of(x, w, kCols, type, out.data());
    params.residual = out.data();
    int8_product(params, stream());
    expect_same(download(out, type), multiply(x, w, kCols, type, added), dtype_name(type));
  }
}

// Rows [first, first + count) of [all, width].
std::vector<float> rows_of(const std::vector<float>& all, int64_t width, int64_t first, int64_t count) {
  return {all.begin() + first * width, all.begin() + (first + count) * width};
}

// A row alone, in fewer and in more rows, with the threads of another number.
TEST_P(Int8Test, ARowDoesNotDependOnItsNeighbours) {
  constexpr int64_t kRows = 300, kN = 131, kCols = 576;
  const std::vector<float> x = random_values(1, kRows * 2 * kCols), norm = random_values(2, kCols);
  for (const Int8Input input : {Int8Input::kPlain, Int8Input::kNormed, Int8Input::kGated}) {
    const int64_t width = input == Int8Input::kGated ? 2 * kCols : kCols;
    std::vector<float> whole;
    for (const int threads : {2, 3, 1}) {
      open(threads);
      const DeviceArray weights = upload(norm, DType::kF32);
      const Converted w = plain_matrix(random_values(3, kN * kCols), kCols, DType::kF32);
      const auto run = [&](int64_t first, int64_t count) {
        const DeviceArray in = upload(rows_of(x, width, first, count), DType::kF32);
        Int8ActivationParams params{};
        params.x = in.data();
        params.input = input;
        params.norm = input == Int8Input::kNormed ? weights.data() : nullptr;
        params.eps = 1e-5f;
        params.type = DType::kF32;
        params.rows = count;
        params.cols = kCols;
        return multiply(convert(params), w, kCols, DType::kF32);
      };
      if (whole.empty()) whole = run(0, kRows);
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, 300}, {0, 1}, {7, 1}, {299, 1}, {100, 64}, {31, 17}, {3, 128}}) {
        expect_same(run(first, count), rows_of(whole, kN, first, count),
                    str(count, " rows from ", first, ", ", threads, " threads"));
      }
    }
  }
}

// Many tiles of each size that CUDA has, several to a block.
TEST_P(Int8Test, TilesChangeNoBit) {
  constexpr int64_t kAll = testing::kSanitized ? 300 : 2048, kN = testing::kSanitized ? 700 : 6144;
  for (const int64_t k : {256, 320}) {
    const std::vector<float> x = random_values(1, kAll * k);
    const Converted w = plain_matrix(random_values(2, kN * k), k, DType::kF32);
    const auto run = [&](int64_t first, int64_t count) {
      return multiply(activation(rows_of(x, k, first, count), k, DType::kF32), w, k, DType::kF32);
    };
    const std::vector<float> whole = run(0, kAll);
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>{0, 1}, {kAll - 1, 1}, {64, 64}, {17, 130}, {kAll / 4, kAll / 2}}) {
      expect_same(run(first, count), rows_of(whole, kN, first, count), str(count, " rows from ", first, ", k=", k));
    }
  }
}

// What normalised and gated rows are before they are converted.
std::vector<float> input_of(Int8Input input, Activation activation, const std::vector<float>& x,
                            const std::vector<float>& norm, int64_t rows, int64_t cols) {
  std::vector<float> out(at(rows * cols));
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < cols; ++i) squares += std::pow(static_cast<double>(x[at(row * cols + i)]), 2);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5);
    for (int64_t i = 0; i < cols; ++i) {
      double y = 0;
      if (input == Int8Input::kNormed) {
        y = x[at(row * cols + i)] * factor * norm[at(i)];
      } else {
        const double gate = x[at(2 * row * cols + i)];
        const double t =
            activation == Activation::kSilu ? gate : 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate);
        y = gate / (1 + std::exp(-t)) * x[at((2 * row + 1) * cols + i)];
      }
      out[at(row * cols + i)] = static_cast<float>(y);
    }
  }
  return out;
}

TEST_P(Int8Test, NormalisesAndGates) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{5, 576}, {2, 4096}, {3, 100}, {1, 14336}, {3, 16448}}) {
    for (const DType type : kAllTypes) {
      for (const auto& [input, activation] : {std::pair{Int8Input::kNormed, Activation::kSilu},
                                              {Int8Input::kGated, Activation::kSilu},
                                              {Int8Input::kGated, Activation::kGelu}}) {
        const bool normed = input == Int8Input::kNormed;
        const std::vector<float> x = rounded(random_values(1, rows * cols * (normed ? 1 : 2), 2.0f), type);
        const std::vector<float> norm = rounded(random_values(2, cols), type), w = random_values(3, 8 * cols);
        const DeviceArray in = upload(x, type), weights = upload(norm, type);
        Int8ActivationParams params{};
        params.x = in.data();
        params.input = input;
        params.norm = normed ? weights.data() : nullptr;
        params.eps = 1e-5f;
        params.type = type;
        params.rows = rows;
        params.cols = cols;
        params.activation = activation;
        const Converted converted = convert(params);
        const std::string what = str(normed ? "normed " : "gated ", static_cast<int>(activation), " ", rows, " x ",
                                     cols, " ", dtype_name(type));
        const PlainRows plain = quantise_plainly(input_of(input, activation, x, norm, rows, cols), cols);
        const std::vector<float> scales = download(converted.scales, DType::kF32);
        for (size_t row = 0; row < scales.size(); ++row) {
          EXPECT_NEAR(scales[row], plain.scales[row], 1e-5f * plain.scales[row]) << what;
        }
        // A few integers round to the other side.
        const std::vector<float> actual = multiply(converted, plain_matrix(w, cols, DType::kF32), cols, DType::kF32);
        const std::vector<float> expected = multiply_plainly(plain, quantise_plainly(w, cols), cols, DType::kF32);
        double error = 0, size = 0;
        for (size_t i = 0; i < actual.size(); ++i) {
          error += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
          size += std::pow(static_cast<double>(expected[i]), 2);
        }
        EXPECT_LE(std::sqrt(error / size), 1e-3) << what;
      }
    }
  }
}

// Against the products of the values: what 8 bits cost. Outliers are spread by the rotation.
TEST_P(Int8Test, IsCloseToTheProduct) {
  constexpr int64_t kRows = 20, kN = 50;
  for (const int64_t k : {512, 1536}) {
    const std::vector<float> x = random_values(1, kRows * k), w = random_values(2, kN * k);
    const std::vector<float> out =
        multiply(activation(x, k, DType::kF32), plain_matrix(w, k, DType::kF32), k, DType::kF32);
    double error = 0, size = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t col = 0; col < kN; ++col) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(x[at(row * k + i)]) * w[at(col * k + i)];
        error += std::pow(out[at(row * kN + col)] - sum, 2);
        size += sum * sum;
      }
    }
    EXPECT_LE(std::sqrt(error / size), 0.025) << "k=" << k;
  }
}

class Int8CheckTest : public Int8Test {};
INSTANTIATE_CHECK_TEST(Int8CheckTest);

TEST_P(Int8CheckTest, RejectsWhatItCannotConvert) {
  const Converted to = room(1, 64);
  const DeviceArray x = upload(std::vector<float>(64), DType::kF32);
  Int8ActivationParams params{};
  params.x = x.data();
  params.type = DType::kF32;
  params.rows = 1;
  params.cols = kMaxInt8Cols + 1;
  params.out = to.view();
  EXPECT_DEATH(int8_activation(params, stream()), "cols=131073");
  params.cols = 64;
  params.norm = x.data();
  EXPECT_DEATH(int8_activation(params, stream()), "kNormed");
  params.norm = nullptr;
  params.rows = 0;
  int8_activation(params, stream());
  const Weight weight = plain_weight(x.data(), DType::kF32, 1, 64);
  EXPECT_DEATH(int8_weight({weight, DType::kBF16, to.view()}, stream()), "F32 as bf16");
}

}  // namespace
}  // namespace headrace
