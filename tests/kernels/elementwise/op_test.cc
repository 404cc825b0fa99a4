#include "kernels/elementwise/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
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
  void check_silu_mul(int64_t rows, int64_t cols, DType type);
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

void ElementwiseTest::check_silu_mul(int64_t rows, int64_t cols, DType type) {
  std::vector<float> gate_up = random_values(7, rows * 2 * cols, 3.0f);
  gate_up[0] = -120.0f;  // e^120 is beyond fp32: the result is 0, not a NaN
  gate_up = rounded(gate_up, type);
  std::vector<double> expected, magnitude;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < cols; ++i) {
      const double gate = gate_up[index_of(row * 2 * cols + i)], up = gate_up[index_of(row * 2 * cols + cols + i)];
      expected.push_back(gate / (1 + std::exp(-gate)) * up);
      magnitude.push_back(std::fabs(expected.back()) + 1e-30);
    }
  }
  const DeviceArray in = upload(gate_up, type), out = output(index_of(rows * cols) * dtype_bytes(type));
  silu_mul({in.data(), out.data(), type, rows, cols}, stream());
  expect_close(download(out, type), expected, magnitude, type,
               str("silu_mul ", rows, " x ", cols, " ", dtype_name(type)));
}

TEST_P(ElementwiseTest, SiluMul) {
  for (DType type : kAllTypes) {
    for (int64_t cols : {1, 5, 16, 33, 1536}) {
      check_silu_mul(1, cols, type);
      check_silu_mul(40, cols, type);
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
      for (int64_t dim : {2, 6, 34, 64, 128, 256}) {
        const DeviceArray x = upload(random_values(1, kRows * kAll * dim, 3.0f), type),
                          q_norm = upload(random_values(2, dim), type), k_norm = upload(random_values(3, dim), type),
                          table = upload_raw(random_values(4, 2 * kTableRows * dim)),
                          positions = upload_raw(std::vector<int32_t>{17, 0, 49});
        const uint64_t kv_bytes = index_of(kRows * kKvHeads * dim) * dtype_bytes(k_type);
        const int64_t element = static_cast<int64_t>(dtype_bytes(type)), stride = kAll * dim;
        const auto run = [&](bool before) {
          const DeviceArray qkv = upload(download(x)), k_out = output(kv_bytes), v_out = output(kv_bytes);
          RopeParams params{};
          params.q = qkv.data();
          params.k = qkv.data() + kHeads * dim * element;
          params.v = qkv.data() + (kHeads + kKvHeads) * dim * element;
          for (int64_t head = 0; before && head < kHeads + kKvHeads; ++head) {
            std::byte* const at = qkv.data() + head * dim * element;
            const void* const weight = head < kHeads ? q_norm.data() : k_norm.data();
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
        EXPECT_TRUE(run(false) == run(true)) << dtype_name(type) << " to " << dtype_name(k_type) << ", " << dim;
      }
    }
  }
}

// ---- Commit -------------------------------------------------------------------------------------------------------

class CommitTest : public testing_support::KernelTest {};
INSTANTIATE_KERNEL_TEST(CommitTest);

TEST_P(CommitTest, RowsGoToTheRingAndTheOpenSegment) {
  constexpr int64_t kLayers = 3, kHeads = 2, kDim = 10, kPassRows = 7, kRingRows = 12, kActiveRows = 32;
  constexpr int64_t kFirst = 41, kActivePosition = 32, kCount = 5;  // 41..45; the ring wraps at 48: not yet, and at 36
  const DType k_type = DType::kBF16, v_type = DType::kF32;
  for (int64_t first : {kFirst, int64_t{33}, int64_t{46}}) {  // 46..50 wraps the ring
    const std::vector<int32_t> source = {6, 0, 3, 3, 5};
    const int64_t pass_count = kLayers * kPassRows * kHeads * kDim, ring_count = kLayers * kHeads * kRingRows * kDim;
    const int64_t open_count = kLayers * kHeads * kActiveRows * kDim;
    const std::vector<float> pass_k = rounded(random_values(1, pass_count), k_type),
                             pass_v = random_values(2, pass_count);
    std::vector<float> ring_k = rounded(random_values(3, ring_count), k_type), ring_v = random_values(4, ring_count);
    std::vector<float> active_k = rounded(random_values(5, open_count), k_type),
                       active_v = random_values(6, open_count);
    const DeviceArray pass_k_array = upload(pass_k, k_type), pass_v_array = upload(pass_v, v_type);
    const DeviceArray ring_k_array = upload(ring_k, k_type), ring_v_array = upload(ring_v, v_type);
    const DeviceArray active_k_array = upload(active_k, k_type), active_v_array = upload(active_v, v_type);
    const DeviceArray source_array = upload_raw(source);
    std::vector<void*> active_k_layers, active_v_layers;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int64_t offset = layer * kHeads * kActiveRows * kDim;
      active_k_layers.push_back(active_k_array.data() + offset * static_cast<int64_t>(dtype_bytes(k_type)));
      active_v_layers.push_back(active_v_array.data() + offset * static_cast<int64_t>(dtype_bytes(v_type)));
    }
    const DeviceArray k_layers = upload_raw(active_k_layers), v_layers = upload_raw(active_v_layers);
    commit_rows({pass_k_array.data(), pass_v_array.data(), source_array.as<int32_t>(), ring_k_array.data(),
                 ring_v_array.data(), k_layers.as<void*>(), v_layers.as<void*>(), k_type, v_type, kLayers, kHeads, kDim,
                 kPassRows, kRingRows, kActiveRows, kCount, first, kActivePosition},
                stream());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t j = 0; j < kCount; ++j) {
        for (int64_t head = 0; head < kHeads; ++head) {
          for (int64_t i = 0; i < kDim; ++i) {
            const size_t from = index_of(((layer * kPassRows + source[index_of(j)]) * kHeads + head) * kDim + i);
            const size_t ring = index_of(((layer * kHeads + head) * kRingRows + (first + j) % kRingRows) * kDim + i);
            const size_t open =
                index_of(((layer * kHeads + head) * kActiveRows + first + j - kActivePosition) * kDim + i);
            ring_k[ring] = active_k[open] = pass_k[from];
            ring_v[ring] = active_v[open] = pass_v[from];
          }
        }
      }
    }
    EXPECT_EQ(download(ring_k_array, k_type), ring_k) << "from " << first;
    EXPECT_EQ(download(ring_v_array, v_type), ring_v) << "from " << first;
    EXPECT_EQ(download(active_k_array, k_type), active_k) << "from " << first;
    EXPECT_EQ(download(active_v_array, v_type), active_v) << "from " << first;
  }
}

TEST_P(CommitTest, ARingAloneNeedsNoSegment) {
  constexpr int64_t kHeads = 2, kDim = 8, kPassRows = 4, kRingRows = 6, kFirst = 1000, kCount = 3;
  const std::vector<int32_t> source = {3, 1, 0};
  const std::vector<float> pass_k = random_values(1, kPassRows * kHeads * kDim);
  const std::vector<float> pass_v = random_values(2, kPassRows * kHeads * kDim);
  std::vector<float> ring_k(kHeads * kRingRows * kDim, -1.0f), ring_v = ring_k;
  const DeviceArray pass_k_array = upload(pass_k, DType::kF32), pass_v_array = upload(pass_v, DType::kF32);
  const DeviceArray ring_k_array = upload(ring_k, DType::kF32), ring_v_array = upload(ring_v, DType::kF32);
  const DeviceArray source_array = upload_raw(source);
  commit_rows(
      {pass_k_array.data(), pass_v_array.data(), source_array.as<int32_t>(), ring_k_array.data(), ring_v_array.data(),
       nullptr, nullptr, DType::kF32, DType::kF32, 1, kHeads, kDim, kPassRows, kRingRows, 0, kCount, kFirst, 0},
      stream());
  for (int64_t j = 0; j < kCount; ++j) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < kDim; ++i) {
        const size_t from = index_of((source[index_of(j)] * kHeads + head) * kDim + i);
        const size_t to = index_of((head * kRingRows + (kFirst + j) % kRingRows) * kDim + i);
        ring_k[to] = pass_k[from];
        ring_v[to] = pass_v[from];
      }
    }
  }
  EXPECT_EQ(download(ring_k_array, DType::kF32), ring_k);
  EXPECT_EQ(download(ring_v_array, DType::kF32), ring_v);
}

// ---- Ring -----------------------------------------------------------------------------------------------------------

class RingTest : public testing_support::KernelTest {};
INSTANTIATE_KERNEL_TEST(RingTest);

// Rows of a segment, from one inside it, to their places in the ring, past its end too; what stands there beside them
// stays. A head_dim of 16 goes by whole vectors, one of 10 by elements.
TEST_P(RingTest, RowsGoToTheirPlaces) {
  constexpr int64_t kHeads = 3, kStrideRows = 32, kRingRows = 24;
  struct Case {
    int64_t dim, first, count, row;  // row: of the segment
  };
  const DType k_type = DType::kBF16, v_type = DType::kF32;
  for (const Case& c : {Case{16, 100, 5, 4}, Case{16, 110, 24, 8}, Case{10, 119, 2, 0}, Case{10, 96, 24, 3}}) {
    const int64_t rows = kHeads * kStrideRows * c.dim, ring = kHeads * kRingRows * c.dim;
    const std::vector<float> k = rounded(random_values(1, rows), k_type), v = random_values(2, rows);
    std::vector<float> ring_k = rounded(random_values(3, ring), k_type), ring_v = random_values(4, ring);
    const DeviceArray k_array = upload(k, k_type), v_array = upload(v, v_type);
    const DeviceArray ring_k_array = upload(ring_k, k_type), ring_v_array = upload(ring_v, v_type);
    const int64_t skipped = c.row * c.dim;
    fill_ring({k_array.data() + skipped * static_cast<int64_t>(dtype_bytes(k_type)),
               v_array.data() + skipped * static_cast<int64_t>(dtype_bytes(v_type)), ring_k_array.data(),
               ring_v_array.data(), k_type, v_type, kHeads, c.dim, kStrideRows, kRingRows, c.count, c.first},
              stream());
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < c.count * c.dim; ++i) {
        const int64_t row = c.row + i / c.dim, place = (c.first + i / c.dim) % kRingRows;
        const size_t from = index_of((head * kStrideRows + row) * c.dim + i % c.dim);
        const size_t to = index_of((head * kRingRows + place) * c.dim + i % c.dim);
        ring_k[to] = k[from];
        ring_v[to] = v[from];
      }
    }
    EXPECT_EQ(download(ring_k_array, k_type), ring_k) << "from " << c.first;
    EXPECT_EQ(download(ring_v_array, v_type), ring_v) << "from " << c.first;
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

// ---- Placed rows ----------------------------------------------------------------------------------------------------

class PlaceTest : public testing_support::KernelTest {};
INSTANTIATE_KERNEL_TEST(PlaceTest);

// K as RoPE with a factor has made it at a row's position becomes what RoPE makes of it at its new position. V and the
// room behind the placed rows stay as they are.
TEST_P(PlaceTest, RowsAreTurnedToTheirNewPositions) {
  constexpr int64_t kLayers = 2, kHeads = 3, kRing = 512, kSinks = 4, kChunkRows = 16, kEnd = 448, kFree = 5;
  const std::vector<int32_t> chosen = {1, 2, 9, 25};
  const int64_t rows = kSinks + static_cast<int64_t>(chosen.size()) * kChunkRows, out_rows = rows + kFree;
  for (const int64_t dim : {64, 10}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const int64_t half = dim / 2, planes = kLayers * kHeads;
      std::vector<float> table;
      for (int64_t row = 0; row < kRing; ++row) {
        for (const bool sine : {false, true}) {
          for (int64_t i = 0; i < half; ++i) {
            const double angle =
                static_cast<double>(row) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
            table.push_back(static_cast<float>(1.5 * (sine ? std::sin(angle) : std::cos(angle))));
          }
        }
      }
      // Plane, row: as a product gives it, and turned to a position.
      const std::vector<float> raw = random_values(1, planes * kRing * dim), v = random_values(2, planes * kRing * dim);
      const auto turned = [&](int64_t plane, int64_t row, int64_t position) {
        std::vector<float> out(index_of(dim));
        const float* const x = raw.data() + (plane * kRing + row) * dim;
        const float* const t = table.data() + position * dim;
        for (int64_t i = 0; i < half; ++i) {
          out[index_of(i)] = x[i] * t[i] - x[half + i] * t[half + i];
          out[index_of(half + i)] = x[half + i] * t[i] + x[i] * t[half + i];
        }
        return out;
      };
      std::vector<float> ring_k, sink_k, sink_v;
      for (int64_t plane = 0; plane < planes; ++plane) {
        for (int64_t row = 0; row < kRing; ++row) {
          const std::vector<float> at = turned(plane, row, row);
          ring_k.insert(ring_k.end(), at.begin(), at.end());
          if (row < kSinks) sink_k.insert(sink_k.end(), at.begin(), at.end());
        }
        sink_v.insert(sink_v.end(), v.begin() + plane * kRing * dim, v.begin() + (plane * kRing + kSinks) * dim);
      }
      const std::vector<float> old(index_of(planes * out_rows * dim), 7.0f);
      const DeviceArray sink_k_array = upload(sink_k, type), sink_v_array = upload(sink_v, type);
      const DeviceArray ring_k_array = upload(ring_k, type), ring_v_array = upload(v, type);
      const DeviceArray k_out = upload(old, type), v_out = upload(old, type);
      const DeviceArray chosen_array = upload_raw(chosen), table_array = upload_raw(table);
      place_rows({.sink_k = sink_k_array.data(),
                  .sink_v = sink_v_array.data(),
                  .ring_k = ring_k_array.data(),
                  .ring_v = ring_v_array.data(),
                  .k_out = k_out.data(),
                  .v_out = v_out.data(),
                  .chosen = chosen_array.as<int32_t>(),
                  .cos_sin = table_array.as<float>(),
                  .k_type = type,
                  .v_type = type,
                  .layers = kLayers,
                  .kv_heads = kHeads,
                  .head_dim = dim,
                  .ring_rows = kRing,
                  .out_rows = out_rows,
                  .table_rows = kRing,
                  .sinks = kSinks,
                  .keep = static_cast<int64_t>(chosen.size()),
                  .chunk_rows = kChunkRows,
                  .end = kEnd},
                 stream());
      const std::vector<float> got_k = download(k_out, type), got_v = download(v_out, type),
                               v_stored = rounded(v, type);
      for (int64_t plane = 0; plane < planes; ++plane) {
        for (int64_t i = 0; i < out_rows; ++i) {
          const int64_t in_chunks = i - kSinks, to = (plane * out_rows + i) * dim;
          if (i >= rows) {
            for (int64_t j = 0; j < dim; ++j) ASSERT_EQ(got_k[index_of(to + j)], 7.0f) << i;
            continue;
          }
          const int64_t row =
              in_chunks < 0 ? i : chosen[index_of(in_chunks / kChunkRows)] * kChunkRows + in_chunks % kChunkRows;
          const std::vector<float> expected = turned(plane, row, kEnd - rows + i);
          const float share = type == DType::kF32 ? 1e-5f : 0.008f;  // two roundings
          for (int64_t j = 0; j < dim; ++j) {
            const float size = std::hypot(expected[index_of(j)], expected[index_of((j + half) % dim)]);
            ASSERT_NEAR(got_k[index_of(to + j)], expected[index_of(j)], share * size) << "row " << row << " at " << i;
            ASSERT_EQ(got_v[index_of(to + j)], v_stored[index_of((plane * kRing + row) * dim + j)]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
