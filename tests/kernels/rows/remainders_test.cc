// What int8 rows lack of their bf16 rows (kernels/rows/op.h): every code of every scale, the format in doubles, and the
// exact bits again.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/rows/op.h"
#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::KernelTest;
using testing_support::random_values;

using Bits = std::vector<uint16_t>;

constexpr uint16_t kNegative = 0x8000;

struct Shape {
  int64_t kv_heads, head_dim, rows;
  int64_t values() const { return kv_heads * head_dim * rows; }
  uint64_t both() const { return static_cast<uint64_t>(2 * values()); }
};

template <typename T>
std::vector<T> as(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// bf16 below or at the value, by magnitude. REQUIRES: it is normal, or 0.
int rounded_down(double magnitude) {
  return static_cast<int>(std::bit_cast<uint32_t>(static_cast<float>(magnitude)) >> 16);
}

// A segment's int8 rows and remainders on the host, decoded as the header says.
struct Stored {
  Shape shape;
  std::vector<std::byte> planes[2];
  std::vector<std::byte> remainders;

  int q(int plane, int64_t i) const { return static_cast<int8_t>(planes[plane][static_cast<size_t>(i)]); }
  double scale(int plane, int64_t i) const {
    f16 scale;
    const auto row = static_cast<size_t>(i / shape.head_dim);
    std::memcpy(&scale, &planes[plane][static_cast<size_t>(shape.values()) + 2 * row], sizeof scale);
    const double value = f16_to_f32(scale);
    return std::isfinite(value) ? value : 0;
  }
  int code(int plane, int64_t i) const {
    return static_cast<int>(remainders[static_cast<size_t>(plane * shape.values() + i)]);
  }
  uint16_t value(int plane, int64_t i, uint64_t* next) const {
    const int code = this->code(plane, i), q = this->q(plane, i);
    if (code == 255) {
      uint16_t bits;
      std::memcpy(&bits, &remainders[remainder_list_offset(shape.both()) + 2 * (*next)++], sizeof bits);
      return bits;
    }
    const double scale = this->scale(plane, i);
    if (q != 0) {
      const int base = rounded_down((std::abs(q) - 0.5) * scale);
      return static_cast<uint16_t>((base + code) | (q < 0 ? kNegative : 0));
    }
    const int low = code % 128, size = low == 126 ? 0 : rounded_down(scale / 2) - low;
    return static_cast<uint16_t>(size | (code >= 128 ? kNegative : 0));
  }
  Bits plane_values(int plane) const {
    Bits all;
    uint64_t next = 0;
    for (int64_t i = 0; i < shape.values(); ++i) {
      if (i % kRemainderRun == 0) {
        uint32_t start;
        const auto run = static_cast<size_t>((plane * shape.values() + i) / kRemainderRun);
        std::memcpy(&start, &remainders[shape.both() + 4 * run], sizeof start);
        next = start;
      }
      all.push_back(value(plane, i, &next));
    }
    return all;
  }
};

class RemaindersTest : public KernelTest {
 protected:
  struct Segment {
    DeviceArray exact[2], rows[2], remainders, decoded[2];
    uint32_t listed = 0;
    KvSegment view(const DeviceArray (&planes)[2], const Shape& shape) const {
      const auto count = static_cast<int32_t>(shape.rows);
      return {planes[0].data(), planes[1].data(), 0, count, count};
    }
  };

  Segment encode(const Shape& shape, const Bits (&values)[2]) {
    Segment segment{
        .exact = {upload_raw(values[0]), upload_raw(values[1])}, .rows = {}, .remainders = {}, .decoded = {}};
    for (int i = 0; i < 2; ++i) {
      segment.rows[i] =
          output(static_cast<uint64_t>(shape.kv_heads * shape.rows) * row_bytes(DType::kInt8, shape.head_dim));
      segment.decoded[i] = output(2 * static_cast<uint64_t>(shape.values()));
    }
    segment.remainders = output(remainder_bytes(shape.both(), remainder_list_capacity(shape.both())));
    const DeviceArray listed = upload_raw(std::vector<uint32_t>{0});
    const KvSegment exact = segment.view(segment.exact, shape), rows = segment.view(segment.rows, shape);
    quantise_rows({exact, rows, DType::kBF16, DType::kBF16, DType::kInt8, DType::kInt8, shape.kv_heads, shape.head_dim,
                   0, shape.rows},
                  stream());
    encode_remainders({exact, rows, segment.remainders.data(), listed.as<uint32_t>(), shape.kv_heads, shape.head_dim},
                      stream());
    segment.listed = as<uint32_t>(download(listed))[0];
    return segment;
  }
  bool fits(const Shape& shape, const Segment& segment) const {
    return segment.listed <= remainder_list_capacity(shape.both());
  }
  void decode(const Shape& shape, const std::vector<Segment*>& segments) {
    DecodeRemaindersParams params{};
    for (Segment* segment : segments) {
      params.segments[params.count++] = {segment->remainders.data(), segment->view(segment->rows, shape),
                                         segment->view(segment->decoded, shape)};
    }
    params.kv_heads = shape.kv_heads;
    params.head_dim = shape.head_dim;
    decode_remainders(params, stream());
  }
  Stored stored(const Shape& shape, const Segment& segment) {
    return {shape, {download(segment.rows[0]), download(segment.rows[1])}, download(segment.remainders)};
  }
  // Encodes, and compares what the op and the test decode.
  Stored expect_exact(const Shape& shape, const Bits (&values)[2], const std::string& what) {
    Segment segment = encode(shape, values);
    EXPECT_TRUE(fits(shape, segment)) << what << ": " << segment.listed << " of " << shape.both();
    decode(shape, {&segment});
    Stored bytes = stored(shape, segment);
    uint32_t listed = 0;
    for (int plane = 0; plane < 2; ++plane) {
      EXPECT_EQ(as<uint16_t>(download(segment.decoded[plane])), values[plane]) << what << ", plane " << plane;
      EXPECT_EQ(bytes.plane_values(plane), values[plane]) << what << ", plane " << plane;
      for (int64_t i = 0; i < shape.values(); ++i) listed += bytes.code(plane, i) == 255;
    }
    EXPECT_EQ(segment.listed, listed) << what;
    return bytes;
  }
};

// Rows whose largest value is each bf16 with this exponent; between them they have every value, of either sign, down to
// a sixteenth of the code's last binade below the scale.
Bits rows_of_every_value(int exponent, int64_t head_dim) {
  Bits values;
  for (int top = exponent << 7; top < (exponent + 1) << 7; ++top) {
    int below = 0;
    for (bool negative : {false, true}) {
      for (below = 0; below <= 1200; ++below) {
        if (values.size() % static_cast<size_t>(head_dim) == 0) values.push_back(static_cast<uint16_t>(top));
        values.push_back(static_cast<uint16_t>((top - below) | (negative ? kNegative : 0)));
      }
    }
    while (values.size() % static_cast<size_t>(head_dim * 4) != 0) values.push_back(static_cast<uint16_t>(top));
  }
  return values;
}

// Every largest value whose scale is a normal f16, and every value beside it.
TEST_P(RemaindersTest, EveryValueOfEveryScale) {
  constexpr int64_t kHeadDim = 256;
  for (int exponent = 127 - 7; exponent <= 127 + 21; ++exponent) {
    const Bits rows = rows_of_every_value(exponent, kHeadDim);
    const Shape shape{1, kHeadDim, static_cast<int64_t>(rows.size()) / kHeadDim};
    const Bits planes[] = {rows, rows};
    const Stored bytes = expect_exact(shape, planes, str("exponent ", exponent));
    for (int64_t i = 0; i < shape.values() && !HasFailure(); ++i) {
      const double value = bf16_to_f32({rows[static_cast<size_t>(i)]}), scale = bytes.scale(0, i);
      ASSERT_GT(scale, 0);
      if (bytes.code(0, i) == 255) {
        EXPECT_LT(std::fabs(value), scale / 4 * 1.04) << value << " of " << scale;
      }
      if (bytes.q(0, i) != 0) {
        EXPECT_LE(bytes.code(0, i), 214) << value << " of " << scale;
      }
    }
  }
}

// Scales that are subnormal f16: too coarse for their rows, so that some values are clamped.
TEST_P(RemaindersTest, CoarseScalesAreExactOrRefused) {
  int refused = 0;
  for (int exponent = 127 - 19; exponent < 127 - 7; ++exponent) {
    const Bits rows = rows_of_every_value(exponent, 256);
    const Shape shape{1, 256, static_cast<int64_t>(rows.size()) / 256};
    const Bits planes[] = {rows, rows};
    Segment segment = encode(shape, planes);
    if (!fits(shape, segment)) {
      ++refused;
      continue;
    }
    decode(shape, {&segment});
    EXPECT_EQ(as<uint16_t>(download(segment.decoded[1])), rows) << exponent;
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 12);
}

Bits bits_of(const std::vector<float>& values) {
  Bits bits;
  for (float value : values) bits.push_back(f32_to_bf16(value).bits);
  return bits;
}

// Rows of all kinds among random ones: zeros of either sign, NaNs with a payload, infinities, subnormals, no f16 scale.
Bits all_kinds(const Shape& shape, uint64_t seed) {
  Bits bits = bits_of(random_values(seed, shape.values()));
  const auto dim = static_cast<size_t>(shape.head_dim);
  for (size_t row = 0; row * dim < bits.size(); ++row) {
    uint16_t* x = &bits[row * dim];
    switch (row % 160) {
      case 1:
        std::fill_n(x, dim, uint16_t{0});
        x[1] = kNegative;
        break;
      case 2:
        x[dim - 1] = 0xffc5;
        break;
      case 3:
        x[0] = 0x7f80;
        break;
      case 4:
        x[dim / 2] = 0x7f00;  // above f16's scales
        break;
      case 5:
        for (size_t i = 0; i < dim; ++i) x[i] = static_cast<uint16_t>(i % 2 == 0 ? i : i | kNegative);  // subnormal
        break;
      case 6:
        x[1] = 0;
        x[2] = kNegative;
        x[3] = 1;
        x[4] = kNegative | 1;
        break;
    }
  }
  return bits;
}

TEST_P(RemaindersTest, RowsOfAllKindsAndShapes) {
  for (const Shape& shape : {Shape{3, 64, 512}, Shape{1, 80, 1024}, Shape{2, 96, 512}, Shape{8, 128, 2048},
                             Shape{1, 256, 512}, Shape{1, 8, 512}}) {
    const Bits values[] = {all_kinds(shape, 1), all_kinds(shape, 2)};
    expect_exact(shape, values, str(shape.kv_heads, " x ", shape.rows, " rows of ", shape.head_dim));
  }
}

TEST_P(RemaindersTest, SeveralSegmentsInOneCall) {
  const Shape shape{2, 64, 512};
  std::vector<Segment> segments;
  std::vector<Segment*> pointers;
  for (uint64_t i = 0; i < kMaxRemainderSegments; ++i) {
    const Bits values[] = {all_kinds(shape, 2 * i), all_kinds(shape, 2 * i + 1)};
    segments.push_back(encode(shape, values));
  }
  for (Segment& segment : segments) pointers.push_back(&segment);
  decode(shape, pointers);
  for (const Segment& segment : segments) {
    for (int plane = 0; plane < 2; ++plane) {
      EXPECT_EQ(download(segment.decoded[plane]), download(segment.exact[plane]));
    }
  }
}

// Rows of one large value and many tiny ones: more values than the list has place for. It counts them and keeps to its
// memory (download() checks the guards).
TEST_P(RemaindersTest, TooManyForTheList) {
  const Shape shape{2, 128, 512};
  Bits values[] = {bits_of(random_values(1, shape.values(), 1e-6f)), bits_of(random_values(2, shape.values()))};
  for (int64_t i = 0; i < shape.values(); i += shape.head_dim) values[0][static_cast<size_t>(i)] = 0x3f80;
  const Segment segment = encode(shape, values);
  const auto least = static_cast<uint32_t>(shape.values() - shape.kv_heads * shape.rows);
  EXPECT_FALSE(fits(shape, segment));
  EXPECT_GE(segment.listed, least);
  EXPECT_LT(segment.listed, least + shape.values() / 20);
  download(segment.remainders);
}

INSTANTIATE_KERNEL_TEST(RemaindersTest);

}  // namespace
}  // namespace headrace
