// KV rows as int8 and int4 against the formats in doubles (tests/support/low_bit_rows.h).
#include "kernels/rows/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/kernel_test.h"
#include "tests/support/low_bit_rows.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::kAllTypes;
using testing_support::KernelTest;
using testing_support::low_bit_plane;
using testing_support::low_bit_values;
using testing_support::random_values;
using testing_support::rounded;

using Bytes = std::vector<std::byte>;

constexpr std::byte kUnwritten{0xff};  // as KernelTest::output() fills it
constexpr float kInf = std::numeric_limits<float>::infinity();

size_t index(int64_t value) { return static_cast<size_t>(value); }

// What the formats are compared with, against the matrix's definition.
TEST(PlainRows, RotatingMultipliesByTheHadamardMatrix) {
  for (const size_t size : {size_t{32}, size_t{128}}) {
    for (size_t i = 0; i < size; ++i) {
      std::vector<double> unit(size);
      unit[i] = 1;
      const std::vector<double> row = testing_support::rotate(unit);
      for (size_t j = 0; j < size; ++j) {
        EXPECT_EQ(row[j], (std::popcount(i & j) % 2 == 0 ? 1 : -1) / std::sqrt(static_cast<double>(size)))
            << i << ", " << j;
      }
    }
  }
}

struct RowsCase {
  int64_t kv_heads, head_dim, stride_rows, first_row, count;
  DType type, stored;

  std::string name() const {
    return str(kv_heads, " x ", stride_rows, " rows of ", head_dim, " ", dtype_name(type), " as ", dtype_name(stored),
               ": ", first_row, " + ", count);
  }
  int64_t elements() const { return kv_heads * stride_rows * head_dim; }
  bool in(size_t row) const {  // of all KV heads'
    const int64_t place = static_cast<int64_t>(row) % stride_rows;
    return place >= first_row && place < first_row + count;
  }
};

std::vector<RowsCase> rows_cases(bool with_int4) {
  std::vector<RowsCase> cases;
  for (DType type : kAllTypes) {
    for (int64_t head_dim : {2, 18, 64, 80, 96, 128, 256, 512}) {
      if (head_dim > 80 && type != DType::kBF16) continue;
      cases.push_back({2, head_dim, 13, 0, 13, type, DType::kInt8});
      cases.push_back({1, head_dim, 29, 3, 25, type, DType::kInt8});
      if (with_int4 && head_dim >= 64 && head_dim != 80 && head_dim != 96) {
        cases.push_back({3, head_dim, 13, 5, 7, type, DType::kInt4});
      }
    }
  }
  cases.push_back({2, 64, 130, 1, 129, DType::kBF16, DType::kInt8});  // more than a CPU thread's run
  cases.push_back({2, 64, 8, 4, 0, DType::kBF16, DType::kInt8});
  if (with_int4) cases.push_back({2, 32, 65, 0, 65, DType::kF32, DType::kInt4});
  return cases;
}

// Rows [kv_heads][stride_rows][head_dim] of all kinds: one of zeros, a tiny one, a huge one, and one with each value
// that is not finite.
std::vector<float> all_kinds(const RowsCase& c, uint64_t seed) {
  std::vector<float> values = random_values(seed, c.elements());
  const size_t dim = index(c.head_dim);
  for (size_t row = 0; row * dim < values.size(); ++row) {
    float* x = &values[row * dim];
    for (size_t i = 0; i < dim; ++i) {
      if (row % 11 == 1) x[i] = 0;
      if (row % 11 == 2) x[i] *= 1e-6f;  // f16's subnormal scales
      if (row % 11 == 3) x[i] *= 1e-9f;
      if (row % 11 == 4) x[i] = (c.stored == DType::kInt4 ? 3000.0f : 60000.0f) * (i % 3 == 0 ? -1.0f : 1.0f);
    }
    if (row % 11 == 6) x[dim - 1] = std::nanf("");
    if (row % 11 == 7) x[dim / 2] = -kInf;
    if (row % 11 == 8) x[0] = c.type == DType::kF16 ? kInf : 3e38f;  // no f16 scale holds it
  }
  return rounded(values, c.type);
}

class RowsTest : public KernelTest {
 protected:
  KvSegment segment(const DeviceArray& k, const DeviceArray& v, int64_t rows) {
    return {k.data(), v.data(), 0, static_cast<int32_t>(rows), static_cast<int32_t>(rows)};
  }
  DeviceArray plane(const RowsCase& c) {
    return output(index(c.kv_heads * c.stride_rows) * row_bytes(c.stored, c.head_dim));
  }
  RowsParams quantise(const RowsCase& c, const DeviceArray (&from)[2], const DeviceArray (&to)[2], bool back) {
    return {segment(from[0], from[1], c.stride_rows),
            segment(to[0], to[1], c.stride_rows),
            c.type,
            c.type,
            c.stored,
            c.stored,
            c.kv_heads,
            c.head_dim,
            c.first_row,
            c.count,
            back};
  }
};
// The bytes of row `row` of `rows` in a plane: values, then parameters.
Bytes stored_row(const Bytes& plane, size_t row, size_t rows, DType type, int64_t head_dim) {
  const size_t values = row_value_bytes(type, head_dim), parameters = row_parameter_bytes(type, head_dim);
  const auto at = [&](size_t byte) { return plane.begin() + static_cast<int64_t>(byte); };
  Bytes bytes(at(row * values), at((row + 1) * values));
  bytes.insert(bytes.end(), at(rows * values + row * parameters), at(rows * values + (row + 1) * parameters));
  return bytes;
}

// A row of int4: each rotated value is within half a step of what is stored, and the steps are no larger than needed.
void expect_int4(const float* x, const Bytes& row, int64_t head_dim, const std::string& what) {
  const std::vector<double> wanted = testing_support::rotate(std::vector<double>(x, x + head_dim));
  const std::vector<float> got = low_bit_values(row, DType::kInt4, head_dim);
  const std::vector<double> rotated = testing_support::rotate(std::vector<double>(got.begin(), got.end()));
  double most = 0;
  for (double value : wanted) most = std::max(most, std::fabs(value));
  for (size_t first = 0; first < index(head_dim); first += kInt4Group) {
    const auto begin = wanted.begin() + static_cast<int64_t>(first), end = begin + kInt4Group;
    const double width = *std::max_element(begin, end) - *std::min_element(begin, end);
    for (size_t i = first; i < first + kInt4Group; ++i) {
      // Half a step, and what rounding the parameters to f16 may move.
      const double allowed = width / 30 * 1.01 + most * (0x1p-10 + 1e-6) + 0x1p-20;
      ASSERT_NEAR(rotated[i], wanted[i], allowed) << what << ", element " << i;
    }
  }
}

TEST_P(RowsTest, QuantisedAsTheFormatsSay) {
  for (const RowsCase& c : rows_cases(true)) {
    const std::vector<float> values[] = {all_kinds(c, 1), all_kinds(c, 2)};
    const DeviceArray from[] = {upload(values[0], c.type), upload(values[1], c.type)}, to[] = {plane(c), plane(c)};
    quantise_rows(quantise(c, from, to, false), stream());
    for (int side = 0; side < 2; ++side) {
      const Bytes got = download(to[side]), plain = low_bit_plane(values[side], c.stored, c.head_dim);
      EXPECT_EQ(download(from[side]), testing_support::encode(values[side], c.type)) << c.name();
      const size_t rows = index(c.kv_heads * c.stride_rows);
      for (size_t row = 0; row < rows; ++row) {
        const Bytes bytes = stored_row(got, row, rows, c.stored, c.head_dim);
        const Bytes expected = stored_row(plain, row, rows, c.stored, c.head_dim);
        const std::string what = str(c.name(), ", row ", row);
        const float* x = &values[side][row * index(c.head_dim)];
        if (!c.in(row)) {
          ASSERT_EQ(bytes, Bytes(bytes.size(), kUnwritten)) << what;
        } else if (c.stored == DType::kInt8) {
          ASSERT_EQ(bytes, expected) << what;
        } else if (row % 11 >= 6 && row % 11 <= 8) {
          for (float value : low_bit_values(bytes, c.stored, c.head_dim)) ASSERT_TRUE(std::isnan(value)) << what;
        } else {
          expect_int4(x, bytes, c.head_dim, what);
        }
      }
    }
  }
}

// What write_back leaves, what dequantise_rows makes of the plane, and value times scale rounded once: the same bits.
TEST_P(RowsTest, WriteBackIsWhatDequantisingGives) {
  for (const RowsCase& c : rows_cases(false)) {
    const std::vector<float> values[] = {all_kinds(c, 3), all_kinds(c, 4)};
    const DeviceArray from[] = {upload(values[0], c.type), upload(values[1], c.type)}, to[] = {plane(c), plane(c)};
    quantise_rows(quantise(c, from, to, true), stream());
    const uint64_t bytes = index(c.elements()) * dtype_bytes(c.type);
    const DeviceArray back[] = {output(bytes), output(bytes)};
    dequantise_rows({segment(to[0], to[1], c.stride_rows), segment(back[0], back[1], c.stride_rows), c.type, c.type,
                     c.stored, c.stored, c.kv_heads, c.head_dim, c.first_row, c.count},
                    stream());
    for (int side = 0; side < 2; ++side) {
      const std::vector<float> plain =
          rounded(low_bit_values(low_bit_plane(values[side], c.stored, c.head_dim), c.stored, c.head_dim), c.type);
      const Bytes written = download(from[side]), exact = download(back[side]);
      const std::vector<float> got = testing_support::decode(exact, c.type);
      const size_t row_size = index(c.head_dim) * dtype_bytes(c.type);
      for (size_t i = 0; i < got.size(); ++i) {
        const size_t row = i / index(c.head_dim);
        if (!c.in(row)) continue;
        ASSERT_EQ(std::memcmp(&written[row * row_size], &exact[row * row_size], row_size), 0) << c.name() << row;
        ASSERT_TRUE(got[i] == plain[i] || (std::isnan(got[i]) && std::isnan(plain[i])))
            << c.name() << ", row " << row << ": " << got[i] << ", not " << plain[i];
      }
      Bytes outside = testing_support::encode(values[side], c.type);  // rows that the call does not name
      for (size_t row = 0; row * row_size < outside.size(); ++row) {
        if (c.in(row)) continue;
        ASSERT_EQ(std::memcmp(&outside[row * row_size], &written[row * row_size], row_size), 0) << c.name() << row;
        ASSERT_EQ(exact[row * row_size], kUnwritten) << c.name() << row;
      }
    }
  }
}

// K low-bit and V copied, or the reverse; nothing happens to a side whose two segments are one.
TEST_P(RowsTest, CopiesWhatIsNotLowBit) {
  const RowsCase c{2, 48, 33, 2, 30, DType::kF16, DType::kInt8};
  const std::vector<float> k = all_kinds(c, 5), v = all_kinds(c, 6);
  const DeviceArray k_in = upload(k, c.type), v_in = upload(v, c.type), k_out = plane(c);
  const DeviceArray v_out = output(index(c.elements()) * 2);
  const KvSegment from = segment(k_in, v_in, c.stride_rows), to = segment(k_out, v_out, c.stride_rows);
  quantise_rows({from, to, c.type, c.type, DType::kInt8, c.type, c.kv_heads, c.head_dim, c.first_row, c.count, true},
                stream());
  const Bytes copied = download(v_out), original = testing_support::encode(v, c.type);
  for (size_t row = 0; row < index(c.kv_heads * c.stride_rows); ++row) {
    const size_t bytes = index(c.head_dim) * 2;
    if (c.in(row)) {
      ASSERT_EQ(std::memcmp(&copied[row * bytes], &original[row * bytes], bytes), 0) << row;
    } else {
      ASSERT_EQ(copied[row * bytes], kUnwritten) << row;
    }
  }
  EXPECT_EQ(download(v_in), original);
  const DeviceArray k_back = output(index(c.elements()) * 2);
  dequantise_rows({to, segment(k_back, v_out, c.stride_rows), c.type, c.type, DType::kInt8, c.type, c.kv_heads,
                   c.head_dim, c.first_row, c.count},
                  stream());
  EXPECT_EQ(download(v_out), copied);
  const Bytes written = download(k_in), back = download(k_back);
  const size_t first = index(c.first_row * c.head_dim) * 2, bytes = index(c.count * c.head_dim) * 2;
  EXPECT_EQ(std::memcmp(&written[first], &back[first], bytes), 0);
}

struct RingCase {
  int64_t layers, kv_heads, head_dim, ring_rows, to_rows, to_position, first_position, count;
  DType stored_k, stored_v;
};

// The ring's rows are, bit by bit, those that quantise_rows() makes of them at their places.
TEST_P(RowsTest, TheRingsRowsAreThoseOfASegment) {
  constexpr DType kType = DType::kBF16, kInt8 = DType::kInt8, kInt4 = DType::kInt4;
  for (const RingCase& r :
       {RingCase{3, 2, 64, 50, 40, 96, 100, 30, kInt8, kInt8},  // around the ring's end
        RingCase{2, 1, 80, 33, 64, 0, 0, 33, kInt8, kType}, RingCase{1, 3, 18, 70, 80, 0, 9, 1, kInt8, kInt8},
        RingCase{2, 2, 128, 50, 90, 128, 140, 50, kInt4, kInt4}, RingCase{2, 2, 64, 9, 16, 0, 3, 0, kInt4, kInt4}}) {
    const RowsCase c{r.kv_heads, r.head_dim, r.to_rows, r.first_position - r.to_position, r.count, kType, kInt8};
    const int64_t ring_elements = r.layers * r.kv_heads * r.ring_rows * r.head_dim;
    const std::vector<float> ring[] = {rounded(random_values(7, ring_elements), kType),
                                       rounded(random_values(8, ring_elements), kType)};
    const DType stored[] = {r.stored_k, r.stored_v};
    std::vector<DeviceArray> planes[2], expected[2];
    std::vector<void*> pointers[2];
    for (int64_t layer = 0; layer < r.layers; ++layer) {
      DeviceArray rows[2];
      for (int side = 0; side < 2; ++side) {
        const uint64_t bytes = index(r.kv_heads * r.to_rows) * row_bytes(stored[side], r.head_dim);
        planes[side].push_back(output(bytes));
        expected[side].push_back(output(bytes));
        pointers[side].push_back(planes[side].back().data());
        std::vector<float> in_place(index(c.elements()));
        for (int64_t head = 0; head < r.kv_heads; ++head) {
          for (int64_t p = r.first_position; p < r.first_position + r.count; ++p) {
            const int64_t from = (layer * r.kv_heads + head) * r.ring_rows + p % r.ring_rows;
            std::copy_n(ring[side].begin() + from * r.head_dim, r.head_dim,
                        in_place.begin() + (head * r.to_rows + p - r.to_position) * r.head_dim);
          }
        }
        rows[side] = upload(in_place, kType);
      }
      quantise_rows({segment(rows[0], rows[1], r.to_rows), segment(expected[0].back(), expected[1].back(), r.to_rows),
                     kType, kType, stored[0], stored[1], r.kv_heads, r.head_dim, c.first_row, r.count, false},
                    stream());
      stream().synchronize();
    }
    const DeviceArray ring_k = upload(ring[0], kType), ring_v = upload(ring[1], kType);
    const DeviceArray to_k = upload_raw(pointers[0]), to_v = upload_raw(pointers[1]);
    quantise_ring({ring_k.data(), ring_v.data(), to_k.as<void*>(), to_v.as<void*>(), kType, kType, stored[0], stored[1],
                   r.layers, r.kv_heads, r.head_dim, r.ring_rows, r.to_rows, r.first_position, r.count, r.to_position},
                  stream());
    for (int side = 0; side < 2; ++side) {
      for (size_t layer = 0; layer < index(r.layers); ++layer) {
        EXPECT_EQ(download(planes[side][layer]), download(expected[side][layer])) << "layer " << layer;
      }
    }
  }
}

INSTANTIATE_KERNEL_TEST(RowsTest);

// ---- Bugs of the caller ---------------------------------------------------------------------------------------------

class RowsDeathTest : public RowsTest {};

TEST_P(RowsDeathTest, NamesWhatIsWrong) {
  const DeviceArray array = output(4096);
  const KvSegment any = segment(array, array, 8);
  RowsParams params{any, any, DType::kF32, DType::kF32, DType::kInt4, DType::kInt4, 1, 48, 0, 8, false};
  EXPECT_DEATH(quantise_rows(params, stream()), "head_dim=48 for int4");
  params.head_dim = 32;
  params.count = 9;
  EXPECT_DEATH(quantise_rows(params, stream()), "rows 0 \\+ 9 of 8");
  params.count = 8;
  params.stored_k_type = DType::kBF16;
  EXPECT_DEATH(quantise_rows(params, stream()), "f32 rows stored as bf16");
}

INSTANTIATE_CHECK_TEST(RowsDeathTest);

}  // namespace
}  // namespace headrace
