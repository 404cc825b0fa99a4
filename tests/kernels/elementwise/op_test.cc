#include "kernels/elementwise/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::decode;
using testing_support::DeviceArray;
using testing_support::encode;
using testing_support::expect_close;
using testing_support::kAllTypes;
using testing_support::random_values;
using testing_support::rounded;

class ElementwiseTest : public testing_support::KernelTest {
 protected:
  void check_rms_norm(int64_t rows, int64_t cols, int64_t gap, DType x_type, DType type);
  void check_silu_mul(Activation activation, int64_t rows, int64_t cols, DType type);
  void check_added_norm(int64_t rows, int64_t cols, DType x_type, DType type, float factor = 1.0f);
};
INSTANTIATE_KERNEL_TEST(ElementwiseTest);

size_t index_of(int64_t index) { return static_cast<size_t>(index); }

TEST_P(ElementwiseTest, EmbeddingCopiesRows) {
  const std::pair<DType, DType> types[] = {{DType::kF32, DType::kF32},
                                           {DType::kF16, DType::kF16},
                                           {DType::kBF16, DType::kBF16},
                                           {DType::kF16, DType::kF32},
                                           {DType::kBF16, DType::kF32}};
  for (const auto& [type, out_type] : types) {
    for (int64_t hidden : {1, 7, 576, 5000}) {
      constexpr int64_t kVocab = 11;
      const std::vector<float> table = rounded(random_values(1, kVocab * hidden), type);
      const std::vector<int32_t> ids = {10, 0, 3, 3, 7};
      const DeviceArray table_array = upload(table, type), ids_array = upload_raw(ids);
      const DeviceArray out = output(ids.size() * index_of(hidden) * dtype_bytes(out_type));
      embedding({ids_array.as<int32_t>(), table_array.data(), out.data(), type, out_type, 5, kVocab, hidden}, stream());
      const std::vector<float> got = download(out, out_type);
      for (size_t row = 0; row < ids.size(); ++row) {
        for (int64_t i = 0; i < hidden; ++i) {
          ASSERT_EQ(got[row * index_of(hidden) + index_of(i)], table[index_of(ids[row] * hidden + i)])
              << dtype_name(type) << " to " << dtype_name(out_type) << " row " << row << " element " << i;
        }
      }
    }
  }
}

void ElementwiseTest::check_rms_norm(int64_t rows, int64_t cols, int64_t gap, DType x_type, DType type) {
  constexpr float kEps = 1e-5f;
  const int64_t stride = cols + gap;
  const std::vector<float> x = rounded(random_values(5, rows * stride), x_type);
  const std::vector<float> weight = rounded(random_values(6, cols), type);
  std::vector<double> expected;
  std::vector<size_t> places;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = row * stride;
    double squares = 0;
    for (int64_t i = 0; i < cols; ++i) squares += std::pow(static_cast<double>(x[index_of(begin + i)]), 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + static_cast<double>(kEps));
    for (int64_t i = 0; i < cols; ++i) {
      expected.push_back(x[index_of(begin + i)] * scale * weight[index_of(i)]);
      places.push_back(index_of(begin + i));
    }
  }
  const std::string what = str("rms_norm ", rows, " x ", cols, " ", dtype_name(x_type), " to ", dtype_name(type));
  const DeviceArray weight_array = upload(weight, type);
  const std::vector<float> before = rounded(x, type);
  for (bool in_place : {false, true}) {
    if (in_place && x_type != type) continue;
    const DeviceArray in = upload(x, x_type), fresh = upload(before, type);
    const DeviceArray& out = in_place ? in : fresh;
    rms_norm({in.data(), weight_array.data(), out.data(), x_type, type, rows, cols, stride, stride, kEps}, stream());
    const std::vector<float> all = download(out, type);
    std::vector<float> got;
    for (size_t place : places) got.push_back(all[place]);
    expect_close(got, expected, {}, type, what);
    for (int64_t row = 0; row < rows; ++row) {  // what lies between the rows stays
      for (int64_t i = cols; i < stride; ++i) {
        ASSERT_EQ(all[index_of(row * stride + i)], before[index_of(row * stride + i)]) << what;
      }
    }
  }
}

TEST_P(ElementwiseTest, RmsNorm) {
  for (DType type : kAllTypes) {
    for (int64_t cols : {1, 3, 16, 31, 64, 100, 576, 9000}) {
      check_rms_norm(1, cols, 0, type, type);
      check_rms_norm(5, cols, 7, type, type);
      if (type == DType::kF32) continue;
      check_rms_norm(1, cols, 0, DType::kF32, type);
      check_rms_norm(5, cols, 7, DType::kF32, type);
    }
    check_rms_norm(300, 576, 0, type, type);  // enough for the pool
  }
}

// So the first token after a prompt, whose state prefill rounded, is the one that this state always gave.
TEST_P(ElementwiseTest, RmsNormOfWidenedRowsHasTheBitsOfTheRows) {
  constexpr int64_t kRows = 3;
  for (DType type : {DType::kF16, DType::kBF16}) {
    for (int64_t cols : {7, 576, 4096, 9000}) {
      const DeviceArray x = upload(random_values(8, kRows * cols), type), weight = upload(random_values(9, cols), type);
      const DeviceArray wide = output(x.bytes * 2), narrow_out = output(x.bytes), wide_out = output(x.bytes);
      convert({x.data(), wide.data(), type, DType::kF32, kRows * cols}, stream());
      rms_norm({x.data(), weight.data(), narrow_out.data(), type, type, kRows, cols, cols, cols, 1e-5f}, stream());
      rms_norm({wide.data(), weight.data(), wide_out.data(), DType::kF32, type, kRows, cols, cols, cols, 1e-5f},
               stream());
      EXPECT_TRUE(download(narrow_out) == download(wide_out)) << dtype_name(type) << " " << cols;
    }
  }
}

TEST_P(ElementwiseTest, ConvertRoundsOnceToNearestEven) {
  for (DType in_type : kAllTypes) {
    for (DType out_type : kAllTypes) {
      for (int64_t count : {1, 7, 8, 577, 50001}) {  // the last: enough for the pool
        std::vector<float> values = random_values(10, count);
        // Halfway between two values of bf16, and of f16: the even one is taken.
        if (count > 8) {
          values[1] = 1.00390625f, values[2] = 1.01171875f, values[3] = -1.00048828125f, values[4] = 1.00146484375f;
          values[5] = std::numeric_limits<float>::infinity();
        }
        const DeviceArray in = upload(values, in_type);
        const DeviceArray out = output(index_of(count) * dtype_bytes(out_type));
        convert({in.data(), out.data(), in_type, out_type, count}, stream());
        EXPECT_TRUE(download(out) == encode(rounded(values, in_type), out_type))
            << dtype_name(in_type) << " to " << dtype_name(out_type) << ", " << count;
      }
    }
  }
}

TEST_P(ElementwiseTest, RmsNormOfZerosIsZero) {
  const DeviceArray x = upload(std::vector<float>(64), DType::kF16),
                    weight = upload(std::vector<float>(64, 2), DType::kF16);
  const DeviceArray out = output(128);
  rms_norm({x.data(), weight.data(), out.data(), DType::kF16, DType::kF16, 1, 64, 64, 64, 1e-6f}, stream());
  for (float value : download(out, DType::kF16)) EXPECT_EQ(value, 0.0f);
}

// A branch's output, normalised, on top of what was there before; all of it times a factor.
void ElementwiseTest::check_added_norm(int64_t rows, int64_t cols, DType x_type, DType type, float factor) {
  const std::vector<float> x = rounded(random_values(1, rows * cols, 2.0f), x_type),
                           weight = rounded(random_values(2, cols), type),
                           before = rounded(random_values(3, rows * cols, 4.0f), x_type);
  std::vector<double> expected, magnitude;
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < cols; ++i) squares += std::pow(static_cast<double>(x[index_of(row * cols + i)]), 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-6);
    for (int64_t i = 0; i < cols; ++i) {
      const double normed = static_cast<double>(x[index_of(row * cols + i)]) * scale * weight[index_of(i)];
      expected.push_back((before[index_of(row * cols + i)] + normed) * static_cast<double>(factor));
      magnitude.push_back(std::fabs(before[index_of(row * cols + i)]) + std::fabs(normed) + 1e-30);
    }
  }
  const DeviceArray in = upload(x, x_type), weights = upload(weight, type), out = upload(before, x_type),
                    one = upload({factor}, type);
  rms_norm({.x = in.data(),
            .weight = weights.data(),
            .out = out.data(),
            .x_type = x_type,
            .type = type,
            .rows = rows,
            .cols = cols,
            .x_stride = cols,
            .out_stride = cols,
            .eps = 1e-6f,
            .residual = out.data(),
            .factor = factor == 1.0f ? nullptr : one.data()},
           stream());
  expect_close(download(out, x_type), expected, magnitude, x_type,
               str("added norm ", rows, " x ", cols, " ", dtype_name(x_type), " ", dtype_name(type)));
}

TEST_P(ElementwiseTest, NormOfABranchIsAdded) {
  for (const DType type : kAllTypes) {
    for (const int64_t cols : {1, 7, 576, 5376, 9001}) {
      check_added_norm(1, cols, type, type);
      check_added_norm(5, cols, DType::kF32, type);
      check_added_norm(5, cols, DType::kF32, type, 0.40625f);
      check_added_norm(3, cols, type, type, 0.0859375f);
    }
    check_added_norm(300, 576, type, type);  // enough for the pool
  }
}

TEST_P(ElementwiseTest, NormWithoutAWeight) {
  for (const DType type : kAllTypes) {
    for (const int64_t cols : {1, 7, 512, 5376, 9001}) {
      const DeviceArray x = upload(random_values(1, 3 * cols), type),
                        ones = upload(std::vector<float>(index_of(cols), 1.0f), type), plain = output(x.bytes),
                        weighted = output(x.bytes);
      rms_norm({x.data(), nullptr, plain.data(), type, type, 3, cols, cols, cols, 1e-6f}, stream());
      rms_norm({x.data(), ones.data(), weighted.data(), type, type, 3, cols, cols, cols, 1e-6f}, stream());
      EXPECT_TRUE(download(plain) == download(weighted)) << dtype_name(type) << " " << cols;
    }
  }
}

// Kept in the type of the residual stream: rounded, these have the bits of the norm in `type`.
TEST_P(ElementwiseTest, WideNorm) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    for (const int64_t cols : {7, 576, 9001}) {
      const DeviceArray x = upload(random_values(1, 3 * cols), DType::kF32),
                        weight = upload(random_values(2, cols), type), narrow = output(x.bytes / 2),
                        wide = output(x.bytes);
      RmsNormParams norm{x.data(), weight.data(), narrow.data(), DType::kF32, type, 3, cols, cols, cols, 1e-6f};
      rms_norm(norm, stream());
      norm.out = wide.data();
      norm.wide = true;
      rms_norm(norm, stream());
      EXPECT_EQ(rounded(download(wide, DType::kF32), type), download(narrow, type)) << dtype_name(type) << " " << cols;
    }
  }
}

TEST_P(ElementwiseTest, SoftcapBoundsValues) {
  for (const int64_t count : {1, 7, 577, 50001}) {  // the last: enough for the pool
    std::vector<float> before = random_values(1, count, 40.0f);
    if (count > 7) before[1] = 1e30f, before[2] = -1e30f, before[3] = 0.0f;
    std::vector<double> expected, magnitude;
    for (const float value : before) {
      expected.push_back(30.0 * std::tanh(static_cast<double>(value) / 30.0));
      magnitude.push_back(30.0);
    }
    const DeviceArray x = upload(before, DType::kF32);
    softcap({.x = x.as<float>(), .count = count, .cap = 30.0f}, stream());
    expect_close(download(x, DType::kF32), expected, magnitude, DType::kF32, str("softcap ", count));
  }
}

TEST_P(ElementwiseTest, ScaleRoundsToTheType) {
  for (const auto& [x_type, type] : {std::pair{DType::kF32, DType::kF32},
                                     {DType::kF16, DType::kF16},
                                     {DType::kBF16, DType::kBF16},
                                     {DType::kF32, DType::kF16},
                                     {DType::kF32, DType::kBF16}}) {
    for (const int64_t count : {1, 7, 577, 50001}) {  // the last: enough for the pool
      const std::vector<float> before = rounded(random_values(1, count), type);
      std::vector<float> expected = before;
      for (float& value : expected) value *= 73.5f;
      const DeviceArray x = upload(before, x_type);
      scale({x.data(), x_type, type, count, 73.5f}, stream());
      EXPECT_EQ(download(x, x_type), rounded(expected, type)) << dtype_name(x_type) << " " << dtype_name(type);
    }
  }
}

void ElementwiseTest::check_silu_mul(Activation activation, int64_t rows, int64_t cols, DType type) {
  std::vector<float> gate_up = random_values(7, rows * 2 * cols, 3.0f);
  gate_up[0] = -120.0f;  // e^120 is beyond fp32: the result is 0, not a NaN
  if (cols > 4) gate_up[1] = -3e3f, gate_up[2] = 3e3f;
  gate_up = rounded(gate_up, type);
  std::vector<double> expected, magnitude;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < cols; ++i) {
      const double gate = gate_up[index_of(row * 2 * cols + i)], up = gate_up[index_of(row * 2 * cols + cols + i)];
      const double silu = gate / (1 + std::exp(-gate));
      const double inner = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
      // 1 + tanh(u) = 2 / (1 + e^-2u), which does not cancel
      const double gelu = gate / (1 + std::exp(-2 * inner));
      const double most = std::min(gate, 7.0), slope = static_cast<double>(1.702f);
      const double clamped = most / (1 + std::exp(-slope * most)) * (std::clamp(up, -7.0, 7.0) + 1);
      expected.push_back(activation == Activation::kSilu   ? silu * up
                         : activation == Activation::kGelu ? gelu * up
                                                           : clamped);
      // A rounded exponent of e moves the result by as much as it is large.
      const double exponent = activation == Activation::kSilu   ? 0
                              : activation == Activation::kGelu ? std::min(std::fabs(2 * inner), 90.0)
                                                                : std::min(std::fabs(slope * most), 90.0);
      magnitude.push_back(std::fabs(expected.back()) * (1 + exponent) + 1e-30);
    }
  }
  const DeviceArray in = upload(gate_up, type), out = output(index_of(rows * cols) * dtype_bytes(type));
  silu_mul({in.data(), out.data(), type, rows, cols, activation}, stream());
  expect_close(download(out, type), expected, magnitude, type,
               str("activation ", static_cast<int>(activation), " ", rows, " x ", cols, " ", dtype_name(type)));
}

// A gate in place, and its factors among others: the bits of both in one buffer.
TEST_P(ElementwiseTest, SiluMulOfPartsInTwoPlaces) {
  constexpr int64_t kRows = 40, kGap = 16;
  for (const DType type : kAllTypes) {
    for (const int64_t cols : {8, 33, 256}) {
      const std::vector<float> gate = rounded(random_values(3, kRows * cols), type);
      const std::vector<float> up = rounded(random_values(4, kRows * (cols + kGap)), type);
      std::vector<float> both;
      for (int64_t row = 0; row < kRows; ++row) {
        both.insert(both.end(), gate.begin() + row * cols, gate.begin() + (row + 1) * cols);
        both.insert(both.end(), up.begin() + row * (cols + kGap), up.begin() + row * (cols + kGap) + cols);
      }
      const DeviceArray in = upload(both, type), x = upload(gate, type), factors = upload(up, type),
                        expected = output(index_of(kRows * cols) * dtype_bytes(type));
      silu_mul({in.data(), expected.data(), type, kRows, cols, Activation::kGelu}, stream());
      silu_mul({x.data(), x.data(), type, kRows, cols, Activation::kGelu, factors.data(), cols, cols + kGap}, stream());
      EXPECT_EQ(download(x, type), download(expected, type)) << cols << " " << dtype_name(type);
    }
  }
}

TEST_P(ElementwiseTest, RowIds) {
  const std::vector<int32_t> ids = {3, 0, 262143, 7};
  const DeviceArray in = upload_raw(ids);
  for (const auto& [count, first] : {std::pair<int64_t, int64_t>{42, 0}, {1, 0}, {1, 41}, {5, 20}}) {
    const DeviceArray out = output(ids.size() * index_of(count) * sizeof(int32_t));
    row_ids({in.as<int32_t>(), out.as<int32_t>(), static_cast<int64_t>(ids.size()), count, 42, first}, stream());
    std::vector<int32_t> expected;
    for (const int32_t id : ids) {
      for (int64_t i = 0; i < count; ++i) expected.push_back(static_cast<int32_t>(id * 42 + first + i));
    }
    EXPECT_EQ(download_raw<int32_t>(out), expected) << count << " from " << first;
  }
}

TEST_P(ElementwiseTest, SiluMul) {
  for (DType type : kAllTypes) {
    for (int64_t cols : {1, 5, 16, 33, 1536}) {
      for (const Activation activation : {Activation::kSilu, Activation::kGelu, Activation::kClampedSilu}) {
        check_silu_mul(activation, 1, cols, type);
        check_silu_mul(activation, 40, cols, type);
      }
    }
  }
}

// Gates apart from each other, as the heads of a query projection have them, and all in one piece.
TEST_P(ElementwiseTest, GateRows) {
  struct Layout {
    int64_t rows, heads, head_dim, head_stride, stride;
  };
  for (const DType type : kAllTypes) {
    for (const Layout& l :
         {Layout{1, 1, 1, 1, 1}, {3, 4, 64, 128, 530}, {5, 3, 37, 41, 128}, {40, 1, 1536, 1536, 1600}}) {
      const std::vector<float> y = rounded(random_values(3, l.rows * l.heads * l.head_dim), type);
      std::vector<float> gate = random_values(4, l.rows * l.stride, 3.0f);
      gate[0] = -120.0f;  // e^120 is beyond fp32: the result is 0
      gate = rounded(gate, type);
      std::vector<double> expected, magnitude;
      for (int64_t i = 0; i < l.rows * l.heads * l.head_dim; ++i) {
        const int64_t row = i / (l.heads * l.head_dim), head = i / l.head_dim % l.heads;
        const double g = gate[index_of(row * l.stride + head * l.head_stride + i % l.head_dim)];
        expected.push_back(y[index_of(i)] / (1 + std::exp(-g)));
        magnitude.push_back(std::fabs(expected.back()) + 1e-30);
      }
      const DeviceArray device_y = upload(y, type), device_gate = upload(gate, type);
      gate_rows({device_y.data(), device_gate.data(), type, l.rows, l.heads, l.head_dim, l.stride, l.head_stride},
                stream());
      expect_close(download(device_y, type), expected, magnitude, type,
                   str("gate_rows ", l.heads, " x ", l.head_dim, " ", dtype_name(type)));
    }
  }
}

TEST_P(ElementwiseTest, RopeTable) {
  constexpr int64_t kRows = 5000, kDim = 10;
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < kDim / 2; ++i) inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / kDim));
  const DeviceArray inv_freq_array = upload_raw(inv_freq), table = output(kRows * kDim * 4);
  rope_table({inv_freq_array.as<float>(), table.as<float>(), 1.25f, kRows, kDim}, stream());
  const std::vector<float> got = download(table, DType::kF32);
  std::vector<double> expected;
  for (int64_t row = 0; row < kRows; ++row) {
    for (bool sine : {false, true}) {
      for (float frequency : inv_freq) {
        const double angle =
            static_cast<double>(static_cast<float>(row) * frequency);  // rounded, as published models have it
        expected.push_back(1.25 * (sine ? std::sin(angle) : std::cos(angle)));
      }
    }
  }
  expect_close(got, expected, std::vector<double>(expected.size(), 0.1), DType::kF32, "rope_table");
}

// Dimensions that are not rotated have the frequency 0, and no factor of those that are.
TEST_P(ElementwiseTest, RopeTablePassesAtFrequencyZero) {
  constexpr int64_t kRows = 70, kDim = 12;
  const std::vector<float> frequencies = {1.0f, 0.25f, 0.0f, 0.0f, 0.0f, 0.0f};
  const DeviceArray inv_freq = upload_raw(frequencies), out = output(kRows * kDim * sizeof(float));
  rope_table({.inv_freq = inv_freq.as<float>(),
              .cos_sin = out.as<float>(),
              .scale = 1.5f,
              .rows = kRows,
              .head_dim = kDim,
              .beta = 0.5,
              .step = 8},
             stream());
  const std::vector<float> table = download(out, DType::kF32);
  for (int64_t row = 0; row < kRows; ++row) {
    const float* const cosines = &table[index_of(row * kDim)];
    const double factor = 1.5 * (1 + 0.5 * std::log(1.0 + static_cast<double>(row / 8)));
    ASSERT_NEAR(cosines[0], factor * std::cos(static_cast<double>(row)), 1e-5) << row;
    for (int64_t i = 2; i < kDim / 2; ++i) {
      ASSERT_EQ(cosines[i], 1.0f) << row << ", " << i;
      ASSERT_EQ(cosines[kDim / 2 + i], 0.0f) << row << ", " << i;
    }
  }
}

// The rows of a table for queries that grow with their position are those of the other table, times a factor.
TEST_P(ElementwiseTest, RopeTableGrowsByStep) {
  constexpr int64_t kDim = 20, kRows = 45, kStep = 8;
  constexpr double kBeta = 0.3;
  const DeviceArray inv_freq = upload_raw(random_values(1, kDim / 2));
  const auto table = [&](double beta) {
    const DeviceArray out = output(index_of(kRows * kDim) * sizeof(float));
    rope_table({.inv_freq = inv_freq.as<float>(),
                .cos_sin = out.as<float>(),
                .scale = 1.5f,
                .rows = kRows,
                .head_dim = kDim,
                .beta = beta,
                .step = kStep},
               stream());
    return download(out, DType::kF32);
  };
  const std::vector<float> plain = table(0), grown = table(kBeta);
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    const double factor = 1 + kBeta * std::log(1.0 + std::floor(static_cast<double>(i / kDim) / kStep));
    const auto expected = static_cast<double>(plain[index_of(i)]) * factor;
    if (i < kStep * kDim) {
      ASSERT_EQ(grown[index_of(i)], plain[index_of(i)]) << i;
    } else {
      ASSERT_NEAR(static_cast<double>(grown[index_of(i)]), expected, 1e-6) << i;
    }
  }
}

// ---- RoPE ---------------------------------------------------------------------------------------------------------

struct RopeCase {
  DType type, k_type, v_type;
  int64_t rows, heads, kv_heads, head_dim;
  bool by_head;         // k_out as [kv_heads, rows, head_dim], else [rows, kv_heads, head_dim]
  int32_t skipped = 0;  // rows of k_out before the first
  bool own_q_table = false;
};

class RopeTest : public testing_support::KernelTest {
 protected:
  void check(const RopeCase& c);
};
INSTANTIATE_KERNEL_TEST(RopeTest);

// The rotation of one head in doubles.
void rotate(const std::vector<float>& in, size_t begin, const std::vector<float>& table, size_t row, size_t dim,
            std::vector<double>* out, std::vector<double>* magnitude) {
  const size_t half = dim / 2;
  for (size_t i = 0; i < dim; ++i) {
    const double c = table[row * dim + i % half], s = table[row * dim + half + i % half];
    const double self = in[begin + i], other = i < half ? -in[begin + half + i] : in[begin + i - half];
    out->push_back(self * c + other * s);
    magnitude->push_back(std::fabs(self * c) + std::fabs(other * s));
  }
}

void RopeTest::check(const RopeCase& c) {
  constexpr int64_t kTableRows = 50;
  const int64_t stride = (c.heads + 2 * c.kv_heads) * c.head_dim + 3;
  const size_t dim = index_of(c.head_dim);
  const std::vector<float> qkv = rounded(random_values(8, c.rows * stride), c.type);
  const int64_t tables = c.own_q_table ? 2 : 1;
  std::vector<float> table = random_values(9, tables * kTableRows * c.head_dim, 0.5f);
  std::vector<int32_t> positions;
  for (int64_t row = 0; row < c.rows; ++row) positions.push_back(static_cast<int32_t>(row * 17 % kTableRows));
  const DeviceArray qkv_array = upload(qkv, c.type), table_array = upload_raw(table), at = upload_raw(positions);
  const int64_t out_rows = c.rows + c.skipped;
  const uint64_t kv_elements = index_of(out_rows * c.kv_heads) * dim;
  const DeviceArray first = upload_raw(std::vector<int32_t>{c.skipped});
  const DeviceArray k_out = output(kv_elements * dtype_bytes(c.k_type)),
                    v_out = output(kv_elements * dtype_bytes(c.v_type));
  RopeParams params{};
  const int64_t element = static_cast<int64_t>(dtype_bytes(c.type));
  params.q = qkv_array.data();
  params.k = qkv_array.data() + c.heads * c.head_dim * element;
  params.v = qkv_array.data() + (c.heads + c.kv_heads) * c.head_dim * element;
  params.positions = at.as<int32_t>();
  params.cos_sin = table_array.as<float>();
  params.q_table = (tables - 1) * kTableRows * c.head_dim;
  params.k_out = k_out.data();
  params.v_out = v_out.data();
  params.type = c.type;
  params.k_type = c.k_type;
  params.v_type = c.v_type;
  params.rows = c.rows;
  params.heads = c.heads;
  params.kv_heads = c.kv_heads;
  params.head_dim = c.head_dim;
  params.qkv_stride = stride;
  params.table_rows = kTableRows;
  params.out_row_stride = c.by_head ? c.head_dim : c.kv_heads * c.head_dim;
  params.out_head_stride = c.by_head ? out_rows * c.head_dim : c.head_dim;
  params.out_first = c.skipped > 0 ? first.as<int32_t>() : nullptr;
  rope(params, stream());

  const std::vector<float> q = download(qkv_array, c.type), k = download(k_out, c.k_type),
                           v = download(v_out, c.v_type);
  const std::string what = str("rope ", dtype_name(c.type), " to ", dtype_name(c.k_type), ", head_dim ", c.head_dim);
  std::vector<float> got_q, got_k;
  std::vector<double> want_q, want_k, magnitude_q, magnitude_k;
  for (int64_t row = 0; row < c.rows; ++row) {
    const size_t table_row = index_of(positions[index_of(row)]);
    for (int64_t head = 0; head < c.heads; ++head) {
      const size_t begin = index_of(row * stride + head * c.head_dim);
      const size_t q_row = table_row + index_of((tables - 1) * kTableRows);
      rotate(qkv, begin, table, q_row, dim, &want_q, &magnitude_q);
      got_q.insert(got_q.end(), q.begin() + static_cast<int64_t>(begin), q.begin() + static_cast<int64_t>(begin + dim));
    }
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      const size_t k_begin = index_of(row * stride + (c.heads + head) * c.head_dim);
      const size_t v_begin = index_of(row * stride + (c.heads + c.kv_heads + head) * c.head_dim);
      const size_t out = index_of((row + c.skipped) * params.out_row_stride + head * params.out_head_stride);
      rotate(qkv, k_begin, table, table_row, dim, &want_k, &magnitude_k);
      got_k.insert(got_k.end(), k.begin() + static_cast<int64_t>(out), k.begin() + static_cast<int64_t>(out + dim));
      const std::vector<float> v_row(qkv.begin() + static_cast<int64_t>(v_begin),
                                     qkv.begin() + static_cast<int64_t>(v_begin + dim));
      const std::vector<float> v_rounded = rounded(v_row, c.v_type);
      for (size_t i = 0; i < dim; ++i) ASSERT_EQ(v[out + i], v_rounded[i]) << what << " v";
      for (size_t i = k_begin; i < k_begin + dim; ++i) ASSERT_EQ(q[i], qkv[i]) << what << ": k itself stays";
    }
  }
  expect_close(got_q, want_q, magnitude_q, c.type, what + " q");
  expect_close(got_k, want_k, magnitude_k, c.k_type, what + " k");
}

TEST_P(RopeTest, TypesShapesAndLayouts) {
  for (DType type : kAllTypes) {
    for (DType k_type : kAllTypes) {
      const DType v_type = k_type == DType::kF32 ? DType::kBF16 : DType::kF32;
      for (int64_t head_dim : {2, 6, 32, 34, 64, 128}) {
        check({type, k_type, v_type, 1, 3, 1, head_dim, false});
        check({type, k_type, v_type, 9, 4, 2, head_dim, true});
        check({type, k_type, v_type, 4, 2, 2, head_dim, head_dim % 4 == 0, 7});
        check({type, k_type, v_type, 5, 3, 0, head_dim, false});  // q alone
        check({type, k_type, v_type, 3, 4, 2, head_dim, true, 0, true});
      }
    }
  }
  check({DType::kBF16, DType::kBF16, DType::kBF16, 300, 9, 3, 64, true});  // enough for the pool
}

// Heads that are normalised on the way have the bits of heads that rms_norm() normalised before.
TEST_P(RopeTest, NormalisesHeads) {
  constexpr int64_t kRows = 3, kHeads = 4, kKvHeads = 2, kTableRows = 50, kAll = kHeads + 2 * kKvHeads;
  constexpr float kEps = 1e-6f;
  for (DType type : kAllTypes) {
    for (DType k_type : {DType::kF32, DType::kBF16}) {
      for (int64_t dim : {2, 6, 34, 64, 128, 256, 330, 512}) {
        const DeviceArray x = upload(random_values(1, kRows * kAll * dim, 3.0f), type),
                          q_norm = upload(random_values(2, dim), type), k_norm = upload(random_values(3, dim), type),
                          ones = upload(std::vector<float>(index_of(dim), 1.0f), type),
                          table = upload_raw(random_values(4, 2 * kTableRows * dim)),
                          positions = upload_raw(std::vector<int32_t>{17, 0, 49});
        const uint64_t kv_bytes = index_of(kRows * kKvHeads * dim) * dtype_bytes(k_type);
        const int64_t element = static_cast<int64_t>(dtype_bytes(type)), stride = kAll * dim;
        enum class Values { kPlain, kNormed, kOfK };  // v as it is; normalised; and made from k itself
        const auto run = [&](bool before, Values values) {
          const bool of_k = values == Values::kOfK;
          std::vector<std::byte> values_of_x = download(x);
          for (int64_t row = 0; of_k && row < kRows; ++row) {
            std::byte* const k = values_of_x.data() + (row * stride + kHeads * dim) * element;
            std::memcpy(k + kKvHeads * dim * element, k, index_of(kKvHeads * dim * element));
          }
          const DeviceArray qkv = upload(values_of_x), k_out = output(kv_bytes), v_out = output(kv_bytes);
          RopeParams params{};
          params.q = qkv.data();
          params.k = qkv.data() + kHeads * dim * element;
          params.v = of_k && !before ? params.k : qkv.data() + (kHeads + kKvHeads) * dim * element;
          const int64_t normed = kHeads + (values == Values::kPlain ? 1 : 2) * kKvHeads;
          for (int64_t head = 0; before && head < normed; ++head) {
            std::byte* const at = qkv.data() + head * dim * element;
            const void* const weight = head < kHeads              ? q_norm.data()
                                       : head < kHeads + kKvHeads ? k_norm.data()
                                                                  : ones.data();
            rms_norm({at, weight, at, type, type, kRows, dim, stride, stride, kEps}, stream());
          }
          params.positions = positions.as<int32_t>();
          params.cos_sin = table.as<float>();
          params.q_table = kTableRows * dim;
          params.k_out = k_out.data();
          params.v_out = v_out.data();
          params.type = type;
          params.k_type = params.v_type = k_type;
          params.rows = kRows;
          params.heads = kHeads;
          params.kv_heads = kKvHeads;
          params.head_dim = dim;
          params.qkv_stride = stride;
          params.table_rows = kTableRows;
          params.out_row_stride = kKvHeads * dim;
          params.out_head_stride = dim;
          if (!before) {
            params.q_norm = q_norm.data();
            params.k_norm = k_norm.data();
            params.v_norm = values != Values::kPlain;
            params.eps = kEps;
          }
          rope(params, stream());
          std::vector<std::byte> all = download(qkv), k = download(k_out), v = download(v_out);
          for (int64_t row = 0; row < kRows; ++row) {  // what was q, k, v: q alone is an output
            const auto begin = all.begin() + (row * stride + kHeads * dim) * element;
            std::fill(begin, begin + 2 * kKvHeads * dim * element, std::byte{0});
          }
          all.insert(all.end(), k.begin(), k.end());
          all.insert(all.end(), v.begin(), v.end());
          return all;
        };
        for (const Values values : {Values::kPlain, Values::kNormed, Values::kOfK}) {
          EXPECT_TRUE(run(false, values) == run(true, values))
              << dtype_name(type) << " to " << dtype_name(k_type) << ", " << dim << ", " << static_cast<int>(values);
        }
      }
    }
  }
}

// ---- Invariance ---------------------------------------------------------------------------------------------------

// A row alone, and among 63 others in each place, has the same bits (docs/design.md, section 6).
class ElementwiseInvarianceTest : public testing_support::KernelTest {
 protected:
  std::vector<std::byte> norm(const std::vector<float>& x, int64_t rows, DType x_type, DType type);
  std::vector<std::byte> silu(const std::vector<float>& x, int64_t rows, DType type);
  static constexpr int64_t kCols = 570;
  const std::vector<float> weight_ = random_values(31, kCols);
};
INSTANTIATE_KERNEL_TEST(ElementwiseInvarianceTest);

std::vector<std::byte> ElementwiseInvarianceTest::norm(const std::vector<float>& x, int64_t rows, DType x_type,
                                                       DType type) {
  const DeviceArray in = upload(x, x_type), weight = upload(weight_, type), out = output(x.size() * dtype_bytes(type));
  rms_norm({in.data(), weight.data(), out.data(), x_type, type, rows, kCols, kCols, kCols, 1e-5f}, stream());
  return download(out);
}

std::vector<std::byte> ElementwiseInvarianceTest::silu(const std::vector<float>& x, int64_t rows, DType type) {
  const DeviceArray in = upload(x, type), out = output(in.bytes / 2);
  silu_mul({in.data(), out.data(), type, rows, kCols / 2}, stream());
  return download(out);
}

TEST_P(ElementwiseInvarianceTest, ARowAloneAndAmongOthers) {
  constexpr int64_t kRows = 64;
  for (DType type : kAllTypes) {
    const std::vector<float> x = random_values(32, kRows * kCols);
    for (int threads : {1, 2, 4}) {
      open(threads);
      const std::vector<std::byte> norms = norm(x, kRows, type, type), silus = silu(x, kRows, type),
                                   wide_norms = norm(x, kRows, DType::kF32, type);
      for (int64_t row = 0; row < kRows; ++row) {
        const std::vector<float> alone(x.begin() + row * kCols, x.begin() + (row + 1) * kCols);
        const auto same = [&](const std::vector<std::byte>& one, const std::vector<std::byte>& all) {
          return std::memcmp(one.data(), all.data() + index_of(row) * one.size(), one.size()) == 0;
        };
        ASSERT_TRUE(same(norm(alone, 1, type, type), norms)) << "rms_norm " << dtype_name(type) << " row " << row;
        ASSERT_TRUE(same(norm(alone, 1, DType::kF32, type), wide_norms))
            << "rms_norm f32 to " << dtype_name(type) << " row " << row;
        ASSERT_TRUE(same(silu(alone, 1, type), silus)) << "silu_mul " << dtype_name(type) << " row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace headrace
