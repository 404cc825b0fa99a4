// The product of groups of rows: each group has the result of a product of its own, whatever the other groups have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/product/op.h"
#include "tests/support/kernel_test.h"
#include "tests/support/weight_blocks.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::kAllTypes;
using testing_support::kQuantisedTypes;
using testing_support::random_values;
using testing_support::rounded;

constexpr int64_t kN = 48, kGroups = 5;

struct Experts {
  DeviceArray memory;
  Weight first;
  uint64_t stride;
  Weight of(int64_t group) const {
    Weight weight = first;
    weight.parts[0].data = static_cast<const std::byte*>(weight.parts[0].data) + static_cast<uint64_t>(group) * stride;
    return weight;
  }
};

class GroupedProductTest : public testing_support::KernelTest {
 protected:
  bool cuda() { return stream().backend() == Backend::kCuda; }

  Experts quantised(WeightType type, int64_t count = kGroups) {
    const uint64_t bytes = stored_weight_bytes(stream().backend(), type, kN, k_), stride = round_up(bytes, 256);
    Experts experts{output(stride * static_cast<uint64_t>(count)), {}, stride};
    for (int64_t group = 0; group < count; ++group) {
      const DeviceArray blocks = upload(testing_support::random_blocks(type, static_cast<uint64_t>(group + 1), kN, k_));
      store_weight({.blocks = blocks.data(),
                    .type = type,
                    .out = experts.memory.data() + static_cast<uint64_t>(group) * stride,
                    .rows = kN,
                    .cols = k_,
                    .row_begin = 0,
                    .row_end = kN},
                   stream());
      stream().synchronize();
    }
    experts.first = {.parts = {{experts.memory.data(), type, kN}, {}, {}}, .count = 1, .cols = k_};
    return experts;
  }
  Experts plain(DType type, int64_t n = kN) {
    Experts experts{
        upload(random_values(2, kGroups * n * k_), type), {}, static_cast<uint64_t>(n * k_) * dtype_bytes(type)};
    experts.first = plain_weight(experts.memory.data(), type, n, k_);
    return experts;
  }
  // from: the row of x of each row; empty: its own.
  std::vector<float> run(const Experts& experts, const std::vector<int32_t>& begin, const std::vector<float>& x,
                         DType type, DType out_type, const std::vector<int32_t>& from = {}) {
    const int64_t rows = begin.back(), x_rows = static_cast<int64_t>(x.size()) / k_;
    const DeviceArray x_array = upload(x, type), begin_array = upload_raw(begin), from_array = upload_raw(from);
    const DeviceArray room = output(static_cast<uint64_t>(rows * k_) * dtype_bytes(type));
    const DeviceArray out = output(static_cast<uint64_t>(rows * kN) * dtype_bytes(out_type));
    const DeviceArray present = upload_raw(present_of(begin)), bias = upload(biases(kN), type);
    const DeviceArray matrices = upload_raw(matrices_);
    grouped_product({.x = x_array.data(),
                     .weight = experts.first,
                     .stride = experts.stride,
                     .begin = begin_array.as<int32_t>(),
                     .out = out.data(),
                     .type = type,
                     .out_type = out_type,
                     .rows = rows,
                     .groups = kGroups,
                     .n = kN,
                     .k = k_,
                     .most_rows = most_of(begin),
                     .present = lists_present_ ? present.as<int32_t>() : nullptr,
                     .matrices = matrices_.empty() ? nullptr : matrices.as<int32_t>(),
                     .from = from.empty() ? nullptr : from_array.as<int32_t>(),
                     .x_rows = x_rows,
                     .room = cuda() ? nullptr : room.data(),
                     .bias = biased_ ? bias.data() : nullptr,
                     .bias_stride = kN * dtype_bytes(type)},
                    stream());
    return download(out, out_type);
  }
  static std::vector<float> biases(int64_t n) { return random_values(11, kGroups * n); }
  // Not in order: any is allowed.
  static std::vector<int32_t> present_of(const std::vector<int32_t>& begin) {
    std::vector<int32_t> present;
    for (int32_t group = kGroups - 1; group >= 0; --group) {
      if (begin[static_cast<size_t>(group) + 1] > begin[static_cast<size_t>(group)]) present.push_back(group);
    }
    present.resize(static_cast<size_t>(std::min<int64_t>(kGroups, begin.back())), -1);
    return present;
  }
  // Gate and up in parts of their own, or in one: as the product and then silu_mul() compute them.
  void check_gated(const Experts& experts, DType type, const std::vector<int32_t>& begin, Activation activation);
  static int64_t most_of(const std::vector<int32_t>& begin) {
    int64_t most = 0;
    for (size_t i = 1; i < begin.size(); ++i) most = std::max<int64_t>(most, begin[i] - begin[i - 1]);
    return most;
  }
  // By a product of its own, of the decode path; on CUDA two parts keep plain weights from the library, whose bits
  // differ.
  std::vector<float> product_of(const Experts& experts, int64_t group, const std::vector<float>& x, int64_t first,
                                int64_t rows, DType type, DType out_type) {
    if (!matrices_.empty()) group = matrices_[static_cast<size_t>(group)];
    Weight weight = experts.of(group);
    if (is_plain(weight.parts[0].type)) {
      constexpr int64_t kHalf = kN / 2;
      weight.parts[0].rows = kHalf;
      weight.parts[1] = weight.parts[0];
      weight.parts[1].data = static_cast<const std::byte*>(weight.parts[0].data) + kHalf * k_ * dtype_bytes(type);
      weight.count = 2;
    }
    const DeviceArray x_array = upload({x.begin() + first * k_, x.begin() + (first + rows) * k_}, type);
    const DeviceArray out = output(static_cast<uint64_t>(rows * kN) * dtype_bytes(out_type));
    const DeviceArray bias = upload(biases(kN), type);
    product({.x = x_array.data(),
             .weight = weight,
             .bias = biased_ ? bias.data() + static_cast<uint64_t>(group * kN) * dtype_bytes(type) : nullptr,
             .out = out.data(),
             .type = type,
             .out_type = out_type,
             .rows = rows,
             .n = kN,
             .k = k_,
             .path = ProductPath::kDecode},
            stream());
    return download(out, out_type);
  }
  void check(const Experts& experts, const std::vector<int32_t>& begin, DType type, DType out_type,
             const std::string& what);

  int64_t k_ = 512;
  bool lists_present_ = true, biased_ = false;
  std::vector<int32_t> matrices_;  // of each group; empty: its own
};
INSTANTIATE_KERNEL_TEST(GroupedProductTest);

void GroupedProductTest::check(const Experts& experts, const std::vector<int32_t>& begin, DType type, DType out_type,
                               const std::string& what) {
  const std::vector<float> x = rounded(random_values(1, begin.back() * k_), type);
  const std::vector<float> got = run(experts, begin, x, type, out_type);
  for (int64_t group = 0; group < kGroups; ++group) {
    const auto g = static_cast<size_t>(group);
    const int64_t first = begin[g], rows = begin[g + 1] - first;
    if (rows == 0) continue;
    const std::vector<float> expected = product_of(experts, group, x, first, rows, type, out_type);
    EXPECT_EQ(std::memcmp(got.data() + first * kN, expected.data(), expected.size() * sizeof(float)), 0)
        << what << " group " << group << " of " << rows << " rows";
  }
  // The same rows, in another order in x.
  std::vector<float> spread(x.size());
  std::vector<int32_t> from;
  for (int32_t row = 0; row < begin.back(); ++row) {
    from.push_back((row * 5 + 3) % begin.back());
    std::copy_n(x.begin() + row * k_, k_, spread.begin() + from.back() * k_);
  }
  EXPECT_EQ(run(experts, begin, spread, type, out_type, from), got) << what;
}

// Rows that a GPU multiplies eight at a time, and more.
const std::vector<int32_t> kFew = {0, 1, 1, 4, 12, 13}, kSome = {0, 0, 17, 18, 60, 69}, kMany = {0, 70, 86, 86, 87, 89};

TEST_P(GroupedProductTest, AGroupHasTheBitsOfItsOwnProduct) {
  for (const WeightType type : kQuantisedTypes) {
    // Types that few files have are multiplied by a kernel of other bits on CUDA (below).
    if (cuda() && type >= WeightType::kQ2K && type != WeightType::kMXFP4) continue;
    const Experts experts = quantised(type);
    for (const std::vector<int32_t>& begin : {kFew, kSome, kMany})
      for (const DType out_type : {DType::kBF16, DType::kF32})
        check(experts, begin, DType::kBF16, out_type, weight_type_info(type).name);
  }
}

TEST_P(GroupedProductTest, PlainWeightsOfEachType) {
  for (const DType type : kAllTypes) {
    const Experts experts = plain(type);
    for (const std::vector<int32_t>& begin : {kFew, kSome, kMany})
      check(experts, begin, type, DType::kF32, std::string(dtype_name(type)));
  }
}

// In three runs of k in place of four, and in more than one record a run.
TEST_P(GroupedProductTest, OtherNumbersOfColumns) {
  for (const int64_t k : {256, 768, 1792}) {
    k_ = k;
    for (const WeightType type : {WeightType::kQ4K, WeightType::kQ6K, WeightType::kQ8_0}) {
      const Experts experts = quantised(type);
      for (const std::vector<int32_t>& begin : {kFew, kSome, kMany})
        check(experts, begin, DType::kBF16, DType::kF32, str(weight_type_info(type).name, " k=", k));
    }
  }
}

// Rows of gpt-oss's experts: no whole number of records.
TEST_P(GroupedProductTest, RowsOfAnyNumberOfGroups) {
  for (const int64_t k : {2880, 96}) {
    k_ = k;
    for (const WeightType type : {WeightType::kMXFP4, WeightType::kQ8_0}) {
      const Experts experts = quantised(type);
      for (const std::vector<int32_t>& begin : {kFew, kMany})
        check(experts, begin, DType::kBF16, DType::kF32, str(weight_type_info(type).name, " k=", k));
    }
  }
}

// A row that several groups have is in x once.
TEST_P(GroupedProductTest, GroupsShareRowsOfX) {
  const std::vector<float> x = rounded(random_values(1, 3 * k_), DType::kBF16);
  for (const WeightType type : {WeightType::kQ4K, WeightType::kQ6K}) {
    const Experts experts = quantised(type);
    for (const std::vector<int32_t>& begin : {kFew, kMany}) {
      std::vector<int32_t> from;
      std::vector<float> repeated;
      for (int32_t row = 0; row < begin.back(); ++row) {
        from.push_back(row * row % 3);
        repeated.insert(repeated.end(), x.begin() + from.back() * k_, x.begin() + (from.back() + 1) * k_);
      }
      EXPECT_EQ(run(experts, begin, x, DType::kBF16, DType::kBF16, from),
                run(experts, begin, repeated, DType::kBF16, DType::kBF16));
    }
  }
}

void GroupedProductTest::check_gated(const Experts& experts, DType type, const std::vector<int32_t>& begin,
                                     Activation activation) {
  const int64_t rows = begin.back(), n = experts.first.rows(), cols = n / 2, x_rows = 3;
  const auto bytes = [&](int64_t width) { return static_cast<uint64_t>(rows * width) * dtype_bytes(type); };
  std::vector<int32_t> from;
  for (int32_t row = 0; row < rows; ++row) from.push_back(row * row % x_rows);
  const DeviceArray x = upload(random_values(1, x_rows * k_), type), begin_array = upload_raw(begin),
                    from_array = upload_raw(from), present = upload_raw(present_of(begin)), room = output(bytes(k_)),
                    out = output(bytes(n)), got = output(bytes(cols)), expected = output(bytes(cols)),
                    bias = upload(biases(n), type);
  const GroupedProductParams params{.x = x.data(),
                                    .weight = experts.first,
                                    .stride = experts.stride,
                                    .begin = begin_array.as<int32_t>(),
                                    .out = out.data(),
                                    .type = type,
                                    .out_type = type,
                                    .rows = rows,
                                    .groups = kGroups,
                                    .n = n,
                                    .k = k_,
                                    .most_rows = most_of(begin),
                                    .present = present.as<int32_t>(),
                                    .from = from_array.as<int32_t>(),
                                    .x_rows = x_rows,
                                    .room = cuda() ? nullptr : room.data(),
                                    .bias = biased_ ? bias.data() : nullptr,
                                    .bias_stride = static_cast<uint64_t>(n) * dtype_bytes(type),
                                    .activation = activation};
  grouped_product(params, stream());
  silu_mul({.gate_up = out.data(),
            .out = expected.data(),
            .type = type,
            .rows = rows,
            .cols = cols,
            .activation = activation},
           stream());
  grouped_gated_product(params, got.data(), stream());
  EXPECT_EQ(download(got), download(expected)) << weight_type_info(experts.first.parts[0].type).name << " k=" << k_;
}

TEST_P(GroupedProductTest, AGatedProductHasTheBitsOfBothSteps) {
  for (const int64_t k : {512, 768, 2048}) {
    k_ = k;
    for (const WeightType type :
         {WeightType::kQ4K, WeightType::kQ6K, WeightType::kQ8_0, WeightType::kQ5_1, WeightType::kMXFP4}) {
      Experts experts = quantised(type, 2 * kGroups);
      experts.first.parts[1] = experts.of(1).parts[0];
      experts.first.count = 2;
      experts.stride *= 2;
      for (const std::vector<int32_t>& begin : {kFew, kSome, kMany}) {
        check_gated(experts, DType::kBF16, begin, Activation::kSilu);
        check_gated(experts, DType::kBF16, begin, Activation::kGelu);
        check_gated(experts, DType::kBF16, begin, Activation::kClampedSilu);
      }
    }
  }
}

// As experts have in a slab: two groups may even share one. Also in the kernels of other types.
TEST_P(GroupedProductTest, AGroupHasTheMatrixThatTheListNames) {
  biased_ = true;
  matrices_ = {3, 0, 4, 3, 1};
  for (const WeightType type : {WeightType::kQ4K, WeightType::kMXFP4}) {
    const Experts experts = quantised(type);
    for (const std::vector<int32_t>& begin : {kFew, kMany}) {
      check(experts, begin, DType::kBF16, DType::kF32, weight_type_info(type).name);
    }
  }
  const Experts in_f32 = plain(DType::kF32), in_q3 = quantised(WeightType::kQ3K);
  check(in_f32, kFew, DType::kF32, DType::kF32, "F32");
  const std::vector<float> x = rounded(random_values(1, kFew.back() * k_), DType::kBF16);
  const std::vector<float> got = run(in_q3, kFew, x, DType::kBF16, DType::kF32);
  matrices_ = {};
  const std::vector<float> own = run(in_q3, kFew, x, DType::kBF16, DType::kF32);
  EXPECT_NE(got, own);
  for (int64_t group = 0; group < kGroups; ++group) matrices_.push_back(static_cast<int32_t>(group));
  EXPECT_EQ(run(in_q3, kFew, x, DType::kBF16, DType::kF32), own);
}

// The others' rows are left as they are.
TEST_P(GroupedProductTest, OnlyListedGroupsAreMultiplied) {
  for (const auto& given : {std::pair{WeightType::kQ4K, kFew}, {WeightType::kQ4K, kMany}, {WeightType::kF32, kFew}}) {
    const WeightType type = given.first;
    const auto& begin = given.second;
    const bool is_float = type == WeightType::kF32;
    const DType dtype = is_float ? DType::kF32 : DType::kBF16;
    const Experts experts = is_float ? plain(DType::kF32) : quantised(type);
    const int64_t rows = begin.back();
    const DeviceArray x = upload(random_values(1, rows * k_), dtype), begins = upload_raw(begin);
    const auto multiplied = [&](const std::vector<int32_t>& groups, const DeviceArray& out) {
      const DeviceArray present = upload_raw(groups);
      grouped_product({.x = x.data(),
                       .weight = experts.first,
                       .stride = experts.stride,
                       .begin = begins.as<int32_t>(),
                       .out = out.data(),
                       .type = dtype,
                       .out_type = DType::kF32,
                       .rows = rows,
                       .groups = kGroups,
                       .n = kN,
                       .k = k_,
                       .most_rows = most_of(begin),
                       .present = present.as<int32_t>(),
                       .most_listed = static_cast<int64_t>(groups.size())},
                      stream());
      return download(out);
    };
    const auto bytes = static_cast<uint64_t>(rows * kN) * sizeof(float);
    const DeviceArray all = output(bytes), parts = output(bytes);
    const std::vector<std::byte> empty = download(parts), expected = multiplied(present_of(begin), all);
    const std::vector<std::byte> some = multiplied({0, -1, -1}, parts);
    const auto end = static_cast<std::ptrdiff_t>(begin[1] * kN) * 4;
    EXPECT_TRUE(std::equal(some.begin(), some.begin() + end, expected.begin()));
    EXPECT_TRUE(std::equal(some.begin() + end, some.end(), empty.begin() + end));
    std::vector<int32_t> others = present_of(begin);
    std::erase(others, 0);
    EXPECT_EQ(multiplied(others, parts), expected);
  }
}

TEST_P(GroupedProductTest, AGroupHasItsOwnBias) {
  biased_ = true;
  for (const WeightType type : {WeightType::kQ4K, WeightType::kQ8_0, WeightType::kMXFP4}) {
    const Experts one = quantised(type);
    Experts both = quantised(type, 2 * kGroups);
    both.first.parts[1] = both.of(1).parts[0];
    both.first.count = 2;
    both.stride *= 2;
    for (const std::vector<int32_t>& begin : {kFew, kSome, kMany}) {
      check(one, begin, DType::kBF16, DType::kF32, weight_type_info(type).name);
      check_gated(both, DType::kBF16, begin, Activation::kClampedSilu);
    }
  }
  for (const DType type : kAllTypes) {
    const Experts experts = plain(type), tiles = plain(type, 2 * kN);  // the second has halves of whole tiles
    for (const std::vector<int32_t>& begin : {kFew, kMany}) {
      check(experts, begin, type, DType::kF32, std::string(dtype_name(type)));
      check_gated(tiles, type, begin, Activation::kClampedSilu);
    }
  }
}

TEST_P(GroupedProductTest, AGatedProductMayHaveOnePart) {
  for (const DType type : kAllTypes) {
    for (const int64_t n : {kN, 2 * kN}) {  // on a GPU the second has halves of whole tiles
      const Experts experts = plain(type, n);
      for (const std::vector<int32_t>& begin : {kFew, kMany}) check_gated(experts, type, begin, Activation::kSilu);
    }
  }
}

TEST_P(GroupedProductTest, GroupsNeedNotBeListed) {
  lists_present_ = false;
  for (const WeightType type : {WeightType::kQ4K, WeightType::kQ6K}) {
    const Experts experts = quantised(type);
    for (const std::vector<int32_t>& begin : {kFew, kSome, kMany})
      check(experts, begin, DType::kBF16, DType::kF32, weight_type_info(type).name);
  }
  const Experts experts = plain(DType::kF32);
  for (const std::vector<int32_t>& begin : {kFew, kSome, kMany}) check(experts, begin, DType::kF32, DType::kF32, "f32");
}

// Whatever the type is, a row's bits do not depend on the other rows of its group or on other groups.
TEST_P(GroupedProductTest, ARowDoesNotDependOnOthers) {
  const std::vector<float> x = rounded(random_values(1, kMany.back() * k_), DType::kBF16);
  for (const WeightType type : kQuantisedTypes) {
    const Experts experts = quantised(type);
    const std::vector<float> all = run(experts, kMany, x, DType::kBF16, DType::kF32);
    for (const int32_t row : {0, 16, 17, 42, 69, 70, 85, 86, 88}) {
      int64_t group = 0;
      while (kMany[static_cast<size_t>(group) + 1] <= row) ++group;
      std::vector<int32_t> begin(kGroups + 1, 0);
      for (auto g = static_cast<size_t>(group); g < kGroups; ++g) begin[g + 1] = 1;
      const std::vector<float> one =
          run(experts, begin, {x.begin() + row * k_, x.begin() + (row + 1) * k_}, DType::kBF16, DType::kF32);
      EXPECT_EQ(std::memcmp(one.data(), all.data() + row * kN, kN * sizeof(float)), 0)
          << weight_type_info(type).name << " row " << row;
    }
  }
}

// Of the types that CUDA multiplies by another kernel, too: near the products of their own.
TEST_P(GroupedProductTest, OtherTypesAreNearTheirOwnProducts) {
  for (const WeightType type : kQuantisedTypes) {
    const Experts experts = quantised(type);
    const std::vector<float> x = rounded(random_values(1, kFew.back() * k_), DType::kBF16);
    const std::vector<float> got = run(experts, kFew, x, DType::kBF16, DType::kF32);
    for (int64_t group = 0; group < kGroups; ++group) {
      const int64_t first = kFew[static_cast<size_t>(group)], rows = kFew[static_cast<size_t>(group) + 1] - first;
      if (rows == 0) continue;
      const std::vector<float> expected = product_of(experts, group, x, first, rows, DType::kBF16, DType::kF32);
      double error = 0, size = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        const double difference = static_cast<double>(got[static_cast<size_t>(first * kN) + i]) - expected[i];
        error += difference * difference;
        size += static_cast<double>(expected[i]) * expected[i];
      }
      EXPECT_LT(error, 1e-4 * size) << weight_type_info(type).name << " group " << group;  // 8 bits of a weight
    }
  }
}

}  // namespace
}  // namespace headrace
