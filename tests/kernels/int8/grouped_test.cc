// Products of groups of rows in 8 bits against the product of each row with its group's matrix: the same bits.
#include "kernels/int8/grouped.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/kernel_test.h"
#include "tests/support/weight_blocks.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::kAllTypes;
using testing_support::random_blocks;
using testing_support::random_values;
using testing_support::rounded;

size_t place_of(int64_t value) { return static_cast<size_t>(value); }

struct GroupShape {
  int64_t rows, used, groups, n, k;
};

// The pairs of rows and groups, listed as list_pairs() lists them. Of three groups the last has no rows.
struct Pairs {
  std::vector<int32_t> chosen, begin, places;

  explicit Pairs(const GroupShape& s) : begin(place_of(s.groups + 1)) {
    const int64_t taken = s.groups < 3 ? s.groups : s.groups - s.groups / 3;
    for (int64_t row = 0; row < s.rows; ++row) {
      for (int64_t r = 0; r < s.used; ++r) chosen.push_back(static_cast<int32_t>((row * row + r) % taken));
    }
    for (const int32_t group : chosen) ++begin[place_of(group + 1)];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int32_t> next = begin;
    for (const int32_t group : chosen) places.push_back(next[place_of(group)]++);
  }
};

class Int8GroupsTest : public testing_support::KernelTest {
 protected:
  struct Converted {
    DeviceArray values, scales;
    Int8Rows view() const { return {values.as<int8_t>(), scales.as<float>()}; }
  };
  Backend backend() { return stream().backend(); }

  Converted activation(const std::vector<float>& x, int64_t cols, DType type) {
    const int64_t rows = static_cast<int64_t>(x.size()) / cols;
    Converted to{output(int8_values_bytes(backend(), rows, cols)), output(place_of(rows) * sizeof(float))};
    const DeviceArray in = upload(x, type);
    Int8ActivationParams params{};
    params.x = in.data();
    params.type = type;
    params.rows = rows;
    params.cols = cols;
    params.out = to.view();
    int8_activation(params, stream());
    download(to.values);
    return to;
  }
  Converted matrices(const Weight& first, uint64_t stride, int64_t groups, DType type) {
    Converted to{output(int8_group_values_bytes(backend(), groups, first.rows(), first.cols)),
                 output(place_of(groups * first.rows()) * sizeof(float))};
    int8_weight({.weight = first, .type = type, .out = to.view(), .groups = groups, .stride = stride}, stream());
    download(to.values);
    return to;
  }

  static std::vector<float> biases(const GroupShape& s) { return random_values(21, s.groups * s.n); }
  // [rows * used, n], in the order of the pairs. biased_: each group has its own bias.
  std::vector<float> grouped(const GroupShape& s, const Pairs& pairs, const Converted& x, const Converted& w,
                             DType type) {
    const int64_t rows = int8_group_rows(backend(), s.rows * s.used, s.groups);
    const DeviceArray chosen = upload_raw(pairs.chosen), begin = upload_raw(pairs.begin),
                      places = upload_raw(pairs.places), first = output(place_of(s.groups) * 4),
                      end = output(place_of(s.groups) * 4),
                      tiles = output(place_of(int8_group_tiles(backend(), rows, s.groups)) * 4),
                      out = output(place_of(rows * s.n) * dtype_bytes(type)), bias = upload(biases(s), type);
    const Converted spread{output(int8_group_rows_bytes(backend(), rows, s.k)), output(place_of(rows) * sizeof(float))};
    const Int8Groups groups = {first.as<int32_t>(), end.as<int32_t>(), s.groups};
    int8_spread({.x = x.view(),
                 .chosen = chosen.as<int32_t>(),
                 .begin = begin.as<int32_t>(),
                 .places = places.as<int32_t>(),
                 .groups = groups,
                 .out = spread.view(),
                 .rows = s.rows,
                 .used = s.used,
                 .cols = s.k},
                stream());
    int8_grouped_product({.x = spread.view(),
                          .weight = w.view(),
                          .groups = groups,
                          .bias = biased_ ? bias.data() : nullptr,
                          .bias_stride = place_of(s.n) * dtype_bytes(type),
                          .tiles = tiles.as<int32_t>(),
                          .out = out.data(),
                          .type = type,
                          .rows = rows,
                          .n = s.n,
                          .k = s.k},
                         stream());
    download(spread.values);
    const std::vector<float> all = download(out, type);
    const std::vector<int32_t> at_place = download_raw<int32_t>(places);
    std::vector<float> of_pairs;
    std::vector<bool> written(place_of(rows));
    for (const int32_t place : at_place) {
      const auto row = all.begin() + place * s.n;
      of_pairs.insert(of_pairs.end(), row, row + s.n);
      EXPECT_FALSE(written[place_of(place)]) << place;
      written[place_of(place)] = true;
    }
    for (int64_t row = 0; row < rows; ++row) {  // output() fills with NaN
      if (!written[place_of(row)]) {
        EXPECT_TRUE(std::isnan(all[place_of(row * s.n)])) << row;
      }
    }
    return of_pairs;
  }

  // The same, each row by int8_product().
  std::vector<float> one_by_one(const GroupShape& s, const Pairs& pairs, const Converted& x, const Converted& w,
                                DType type) {
    std::vector<float> of_pairs(place_of(s.rows * s.used * s.n));
    const auto bytes = static_cast<int64_t>(int8_values_bytes(backend(), s.n, s.k));
    const DeviceArray bias = upload(biases(s), type);
    for (int64_t group = 0; group < s.groups; ++group) {
      const DeviceArray out = output(place_of(s.rows * s.n) * dtype_bytes(type));
      Int8ProductParams params{};
      params.x = x.view();
      params.weight = {w.view().values + group * bytes, w.view().scales + group * s.n};
      if (biased_) params.bias = bias.data() + place_of(group * s.n) * dtype_bytes(type);
      params.out = out.data();
      params.type = type;
      params.rows = s.rows;
      params.n = s.n;
      params.k = s.k;
      int8_product(params, stream());
      const std::vector<float> all = download(out, type);
      for (size_t pair = 0; pair < pairs.chosen.size(); ++pair) {
        if (pairs.chosen[pair] != group) continue;
        const auto row = all.begin() + static_cast<int64_t>(pair) / s.used * s.n;
        std::copy(row, row + s.n, of_pairs.begin() + static_cast<int64_t>(pair) * s.n);
      }
    }
    return of_pairs;
  }
  bool biased_ = false;
};
INSTANTIATE_KERNEL_TEST(Int8GroupsTest);

// Few rows a group and many, groups without rows, tiles with remainders, columns that are not rotated.
constexpr GroupShape kGroupShapes[] = {{1, 1, 1, 5, 64},      {1, 2, 4, 96, 64},     {40, 3, 5, 130, 320},
                                       {300, 2, 3, 257, 512}, {200, 8, 16, 48, 100}, {33, 2, 2, 300, 256},
                                       {7, 5, 40, 16, 128}};

TEST_P(Int8GroupsTest, EqualTheProductOfEachRow) {
  uint64_t seed = 1;
  for (const GroupShape& s : kGroupShapes) {
    const Pairs pairs(s);
    for (const DType type : kAllTypes) {
      const std::vector<float> w = rounded(random_values(++seed, s.groups * s.n * s.k, 0.05f), type);
      const DeviceArray stored = upload(w, type);
      const Converted x = activation(rounded(random_values(++seed, s.rows * s.k), type), s.k, type);
      const Converted all = matrices(plain_weight(stored.data(), type, s.n, s.k),
                                     static_cast<uint64_t>(s.n * s.k) * dtype_bytes(type), s.groups, type);
      for (const bool biased : {false, true}) {
        biased_ = biased;
        ASSERT_EQ(grouped(s, pairs, x, all, type), one_by_one(s, pairs, x, all, type))
            << s.rows << " rows, " << s.groups << " groups of " << s.n << " x " << s.k << " " << dtype_name(type);
      }
    }
  }
}

// A group's matrix is the one that int8_weight() makes of it alone, also where it has several parts.
TEST_P(Int8GroupsTest, MatricesAreThoseOfEachGroup) {
  constexpr int64_t kGroups = 3, kN = 40, kCols = 512;
  for (const WeightType type : {WeightType::kQ4K, WeightType::kQ6K}) {
    const uint64_t of_part = stored_weight_bytes(backend(), type, kN, kCols), stride = 2 * of_part;
    const DeviceArray stored = output(kGroups * stride);
    for (int64_t part = 0; part < 2 * kGroups; ++part) {
      const DeviceArray blocks = upload(random_blocks(type, static_cast<uint64_t>(part + 1), kN, kCols));
      store_weight({blocks.data(), type, stored.data() + static_cast<uint64_t>(part) * of_part, kN, kCols, 0, kN},
                   stream());
      download(blocks);
    }
    const auto matrix = [&](int64_t group) {
      std::byte* const from = stored.data() + static_cast<uint64_t>(group) * stride;
      return Weight{{{from, type, kN}, {from + of_part, type, kN}, {}}, 2, kCols};
    };
    const Converted all = matrices(matrix(0), stride, kGroups, DType::kBF16);
    const std::vector<float> scales = download(all.scales, DType::kF32);
    const std::vector<std::byte> values = download(all.values);
    for (int64_t group = 0; group < kGroups; ++group) {
      const Converted one = matrices(matrix(group), 0, 1, DType::kBF16);
      const std::vector<float> own = download(one.scales, DType::kF32);
      EXPECT_TRUE(std::equal(own.begin(), own.end(), scales.begin() + group * 2 * kN)) << group;
      const Converted x = activation(random_values(9, 3 * kCols), kCols, DType::kF32);
      const GroupShape shape = {3, 1, 1, 2 * kN, kCols};
      const Converted in_all = {upload({values.begin() + group * static_cast<int64_t>(one.values.bytes),
                                        values.begin() + (group + 1) * static_cast<int64_t>(one.values.bytes)}),
                                upload(own, DType::kF32)};
      const Pairs pairs(shape);
      EXPECT_EQ(one_by_one(shape, pairs, x, in_all, DType::kF32), one_by_one(shape, pairs, x, one, DType::kF32))
          << group;
    }
  }
}

}  // namespace
}  // namespace headrace
