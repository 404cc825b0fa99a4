// The router's scores, and the rows that it normalises.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/elementwise/op.h"
#include "kernels/experts/op.h"
#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::expect_close;
using testing_support::kAllTypes;
using testing_support::random_values;
using testing_support::rounded;

size_t element(int64_t index) { return static_cast<size_t>(index); }

struct Scores {
  std::vector<std::byte> normed;
  std::vector<float> scores;
};

class RouterTest : public testing_support::KernelTest {
 protected:
  struct Model {
    int64_t count, cols;
    DType type, x_type;
    bool biased = false;
  };
  Scores scores_of(const Model& m, const std::vector<float>& x) {
    const int64_t rows = static_cast<int64_t>(x.size()) / m.cols;
    const DeviceArray in = upload(x, m.x_type), norm = upload(random_values(7, m.cols), m.type),
                      weight = upload(random_values(8, m.count * m.cols), m.type),
                      normed = output(element(rows * m.cols) * dtype_bytes(m.type)),
                      scores = output(element(rows * m.count) * 4), bias = upload(random_values(9, m.count), m.type);
    router({.x = in.data(),
            .norm = norm.data(),
            .weight = weight.data(),
            .normed = normed.data(),
            .scores = scores.as<float>(),
            .x_type = m.x_type,
            .type = m.type,
            .rows = rows,
            .count = m.count,
            .cols = m.cols,
            .eps = 1e-6f,
            .bias = m.biased ? bias.data() : nullptr},
           stream());
    return {download(normed), download(scores, DType::kF32)};
  }
  std::vector<std::byte> normed_alone(const Model& m, const std::vector<float>& x) {
    const int64_t rows = static_cast<int64_t>(x.size()) / m.cols;
    const DeviceArray in = upload(x, m.x_type), norm = upload(random_values(7, m.cols), m.type),
                      normed = output(element(rows * m.cols) * dtype_bytes(m.type));
    rms_norm({.x = in.data(),
              .weight = norm.data(),
              .out = normed.data(),
              .x_type = m.x_type,
              .type = m.type,
              .rows = rows,
              .cols = m.cols,
              .x_stride = m.cols,
              .out_stride = m.cols,
              .eps = 1e-6f},
             stream());
    return download(normed);
  }
  static std::vector<Model> models() {
    std::vector<Model> models;
    for (const DType type : kAllTypes) {
      for (const DType x_type : {type, DType::kF32}) {
        for (const auto& [count, cols] : {std::pair<int64_t, int64_t>{128, 2048}, {8, 64}, {5, 520}, {2, 8}, {33, 100}})
          models.push_back({count, cols, type, x_type, count % 2 == 1});
        if (type == DType::kF32) break;
      }
    }
    return models;
  }
};
INSTANTIATE_KERNEL_TEST(RouterTest);

TEST_P(RouterTest, ScoresAreThoseOfNormalisedRows) {
  for (const Model& m : models()) {
    for (const int64_t rows : {1, 3, 16, 17, 65}) {
      const std::vector<float> x = rounded(random_values(static_cast<uint64_t>(rows), rows * m.cols), m.type);
      const Scores got = scores_of(m, x);
      const std::string what = str(dtype_name(m.type), " ", rows, " x ", m.count, " x ", m.cols);
      EXPECT_EQ(got.normed, normed_alone(m, x)) << what;
      const DeviceArray normed_array = upload(got.normed);
      const std::vector<float> normed = download(normed_array, m.type);
      const std::vector<float> weight = rounded(random_values(8, m.count * m.cols), m.type);
      const std::vector<float> bias = rounded(random_values(9, m.count), m.type);
      std::vector<float> some;
      std::vector<double> expected, magnitudes;
      for (const int64_t row : {int64_t{0}, rows - 1}) {
        for (int64_t e = 0; e < m.count; ++e) {
          double sum = m.biased ? static_cast<double>(bias[element(e)]) : 0, magnitude = std::abs(sum);
          for (int64_t i = 0; i < m.cols; ++i) {
            const double term =
                static_cast<double>(normed[element(row * m.cols + i)]) * weight[element(e * m.cols + i)];
            sum += term;
            magnitude += std::abs(term);
          }
          some.push_back(got.scores[element(row * m.count + e)]);
          expected.push_back(sum);
          magnitudes.push_back(magnitude);
        }
      }
      expect_close(some, expected, magnitudes, DType::kF32, what);
    }
  }
}

TEST_P(RouterTest, ARowHasItsBitsInEveryPass) {
  for (const Model& m : models()) {
    constexpr int64_t kRows = 100;
    const std::vector<float> x = rounded(random_values(4, kRows * m.cols), m.type);
    const Scores all = scores_of(m, x);
    for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {99, 1}, {3, 2}, {5, 16}, {7, 17}, {20, 64}}) {
      const Scores some = scores_of(m, {x.begin() + first * m.cols, x.begin() + (first + rows) * m.cols});
      const std::string what = str(dtype_name(m.type), " ", first, " + ", rows, " x ", m.count, " x ", m.cols);
      EXPECT_EQ(std::memcmp(some.scores.data(), all.scores.data() + first * m.count, some.scores.size() * 4), 0)
          << what;
      EXPECT_EQ(std::memcmp(some.normed.data(), all.normed.data() + element(first * m.cols) * dtype_bytes(m.type),
                            some.normed.size()),
                0)
          << what;
    }
  }
}

}  // namespace
}  // namespace headrace
