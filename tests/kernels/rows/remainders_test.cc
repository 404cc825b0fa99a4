// What int8 rows lack of their bf16 rows (kernels/rows/op.h): every value of every scale, the format in doubles, and
// the exact bits again.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/rows/op.h"
#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"

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
    return value >= std::ldexp(1, -14) && std::isfinite(value) ? value : 0;  // 0: it is not a normal f16
  }
  int base(int plane, int64_t i, int magnitude) const { return rounded_down((magnitude - 0.5) * scale(plane, i)); }
  int bits(int plane, int64_t i) const {  // of a code
    const int magnitude = std::abs(q(plane, i));
    if (magnitude == 0 || scale(plane, i) == 0) return 1;
    return static_cast<int>(std::log2(base(plane, i, magnitude + 1) - base(plane, i, magnitude))) + 1;
  }
  uint32_t word(uint64_t index) const {
    uint32_t word;
    std::memcpy(&word, &remainders[4 * index], sizeof word);
    return word;
  }
  // The values of a run, the words of its piece, and how many of its values are in its list.
  struct Run {
    Bits values;
    uint64_t words = 0, listed = 0;
  };
  Run run(int plane, int64_t index) const {
    const uint64_t runs = shape.both() / kRemainderRun,
                   start = word(static_cast<uint64_t>(plane) * runs / 2 + static_cast<uint64_t>(index));
    uint64_t at = 32 * (runs + start);
    Run made;
    std::vector<size_t> in_list;
    for (int64_t i = index * kRemainderRun; i < (index + 1) * kRemainderRun; ++i) {
      int code = 0;
      for (int bit = 0; bit < bits(plane, i); ++bit, ++at)
        code |= static_cast<int>(word(at / 32) >> at % 32 & 1) << bit;
      const int q = this->q(plane, i);
      const bool short_code = q == 0 || scale(plane, i) == 0;
      if (short_code && code == 1) in_list.push_back(made.values.size());
      made.values.push_back(
          short_code ? uint16_t{0}
                     : static_cast<uint16_t>((base(plane, i, std::abs(q)) + code) | (q < 0 ? kNegative : 0)));
    }
    uint64_t next = (at + 31) / 32 * 2;  // in halves of words
    for (const size_t i : in_list) {
      made.values[i] = static_cast<uint16_t>(word(next / 2) >> next % 2 * 16);
      ++next;
    }
    made.listed = in_list.size();
    made.words = (next + 1) / 2 - runs - start;
    return made;
  }
};

class RemaindersTest : public KernelTest {
 protected:
  struct Segment {
    DeviceArray exact[2], rows[2], remainders, decoded[2];
    uint32_t words = 0;
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
    segment.remainders = output(remainder_bytes(shape.both(), remainder_room(shape.both())));
    const DeviceArray words = upload_raw(std::vector<uint32_t>{0});
    const KvSegment exact = segment.view(segment.exact, shape), rows = segment.view(segment.rows, shape);
    quantise_rows({exact, rows, DType::kBF16, DType::kBF16, DType::kInt8, DType::kInt8, shape.kv_heads, shape.head_dim,
                   0, shape.rows},
                  stream());
    encode_remainders({exact, rows, segment.remainders.data(), words.as<uint32_t>(), shape.kv_heads, shape.head_dim},
                      stream());
    segment.words = as<uint32_t>(download(words))[0];
    return segment;
  }
  bool fits(const Shape& shape, const Segment& segment) const { return segment.words <= remainder_room(shape.both()); }
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
  // Encodes, and compares what the op and the test decode. Returns how many values are in lists.
  uint64_t expect_exact(const Shape& shape, const Bits (&values)[2], const std::string& what) {
    Segment segment = encode(shape, values);
    EXPECT_TRUE(fits(shape, segment)) << what << ": " << segment.words << " for " << shape.both();
    if (!fits(shape, segment)) return 0;
    decode(shape, {&segment});
    const Stored bytes = stored(shape, segment);
    uint64_t words = 0, listed = 0;
    for (int plane = 0; plane < 2; ++plane) {
      EXPECT_EQ(as<uint16_t>(download(segment.decoded[plane])), values[plane]) << what << ", plane " << plane;
      Bits all;
      for (int64_t i = 0; i < shape.values() / kRemainderRun; ++i) {
        const Stored::Run run = bytes.run(plane, i);
        all.insert(all.end(), run.values.begin(), run.values.end());
        words += run.words;
        listed += run.listed;
      }
      EXPECT_EQ(all, values[plane]) << what << ", plane " << plane;
    }
    EXPECT_EQ(segment.words, words) << what;
    return listed;
  }
};

// Rows whose largest value is each bf16 with this exponent; between them they have every value of either sign down to
// about the scale, and `smaller` ones.
Bits rows_of_every_value(int exponent, int64_t head_dim, int smaller) {
  Bits values;
  for (int top = exponent << 7; top < (exponent + 1) << 7; ++top) {
    for (bool negative : {false, true}) {
      for (int below = 0; below <= 900 + smaller; ++below) {
        if (values.size() % static_cast<size_t>(head_dim) == 0) values.push_back(static_cast<uint16_t>(top));
        values.push_back(static_cast<uint16_t>((top - below) | (negative ? kNegative : 0)));
      }
    }
    while (values.size() % static_cast<size_t>(head_dim * 4) != 0) values.push_back(static_cast<uint16_t>(top));
  }
  return values;
}

// Every largest value whose scale is a normal f16, and every value beside it. (Of exponents, sanitizers need the ends.)
TEST_P(RemaindersTest, EveryValueOfEveryScale) {
  constexpr int64_t kHeadDim = 256;
  for (int exponent = 127 - 7; exponent <= 127 + 21; exponent += testing::kSanitized ? 28 : 1) {
    const Bits rows = rows_of_every_value(exponent, kHeadDim, 160);
    const Shape shape{1, kHeadDim, static_cast<int64_t>(rows.size()) / kHeadDim};
    const Bits planes[] = {rows, rows};
    EXPECT_GT(expect_exact(shape, planes, str("exponent ", exponent)), 0u);
    if (HasFailure()) return;
  }
}

// Scales that are subnormal f16, too coarse for their rows: all values are in lists, for which there is no room.
TEST_P(RemaindersTest, CoarseScalesAreRefused) {
  for (int exponent = 127 - 19; exponent < 127 - 8; exponent += testing::kSanitized ? 10 : 1) {
    const Bits rows = rows_of_every_value(exponent, 256, 0);
    const Shape shape{1, 256, static_cast<int64_t>(rows.size()) / 256};
    const Bits planes[] = {rows, rows};
    const Segment segment = encode(shape, planes);
    EXPECT_FALSE(fits(shape, segment)) << exponent;
    EXPECT_GE(segment.words, shape.both() * 17 / 32) << exponent;
  }
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
  for (const Shape& shape : {Shape{3, 64, 512}, Shape{1, 80, 1024}, Shape{2, 96, 512},
                             Shape{8, 128, testing::kSanitized ? 512 : 2048}, Shape{1, 256, 512}, Shape{1, 8, 512}}) {
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

// Rows of one large value and many tiny ones need more words than there is room for. They are counted, and nothing is
// written behind the room (download() checks the guards).
TEST_P(RemaindersTest, NoRoom) {
  const Shape shape{2, 128, 512};
  Bits values[] = {bits_of(random_values(1, shape.values(), 1e-6f)), bits_of(random_values(2, shape.values(), 1e-6f))};
  for (Bits& plane : values) {
    for (int64_t i = 0; i < shape.values(); i += shape.head_dim) plane[static_cast<size_t>(i)] = 0x3f80;
  }
  const Segment segment = encode(shape, values);
  const auto listed = static_cast<uint32_t>(2 * (shape.values() - shape.kv_heads * shape.rows));
  EXPECT_FALSE(fits(shape, segment));
  EXPECT_GE(segment.words, listed / 2);
  EXPECT_LT(segment.words, listed * 5 / 8);
  download(segment.remainders);
}

// int8 rows of other values: the segment cannot be decoded, whatever room there is.
TEST_P(RemaindersTest, RowsOfOtherValues) {
  const Shape shape{2, 128, 512};
  const Bits values[] = {bits_of(random_values(1, shape.values())), bits_of(random_values(2, shape.values()))};
  for (const uint16_t change : {uint16_t{kNegative}, uint16_t{0x80}, uint16_t{8}}) {
    Bits others[] = {values[0], values[1]};
    const auto largest = [](uint16_t a, uint16_t b) { return (a & 0x7fff) < (b & 0x7fff); };
    *std::max_element(others[1].begin() + 1280, others[1].begin() + 1408, largest) ^= change;
    Segment segment = encode(shape, values);
    EXPECT_TRUE(fits(shape, segment));
    const DeviceArray exact[] = {upload_raw(others[0]), upload_raw(others[1])};
    const DeviceArray words = upload_raw(std::vector<uint32_t>{0});
    encode_remainders({segment.view(exact, shape), segment.view(segment.rows, shape), segment.remainders.data(),
                       words.as<uint32_t>(), shape.kv_heads, shape.head_dim},
                      stream());
    EXPECT_GT(as<uint32_t>(download(words))[0], remainder_room(shape.both())) << change;
  }
}

INSTANTIATE_KERNEL_TEST(RemaindersTest);

}  // namespace
}  // namespace headrace
