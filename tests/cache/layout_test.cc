#include "cache/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cache/attention_parts.h"
#include "kernels/attention/op.h"

namespace headrace {
namespace {

TEST(Layout, SegmentsTileTheRows) {
  int64_t row = 0;
  for (int64_t index = 0; index < 80; ++index) {
    const SegmentRange range = segment_range(index);
    EXPECT_EQ(range.begin, row);
    EXPECT_EQ(range.rows, row < 16384 ? 512 : 2048);
    for (const int64_t r : {range.begin, range.begin + 1, range.end() - 1}) EXPECT_EQ(segment_of(r), index);
    row = range.end();
    EXPECT_EQ(segments_capacity(index + 1), row);
  }
}

TEST(Layout, CountsSegmentsThatHoldRows) {
  const struct {
    int64_t rows, segments;
  } rows[] = {{0, 0}, {1, 1}, {512, 1}, {513, 2}, {16384, 32}, {16385, 33}, {18432, 33}, {18433, 34}, {61440, 54}};
  for (const auto& row : rows) EXPECT_EQ(segments_for(row.rows), row.segments) << row.rows;
}

TEST(Layout, BytesFollowTypesAndHeads) {
  RowShape shape{.layers = 30, .kv_heads = 3, .head_dim = 64, .k_type = DType::kBF16, .v_type = DType::kF32};
  EXPECT_EQ(shape.k_bytes(), 384u);
  EXPECT_EQ(shape.v_bytes(), 768u);
  EXPECT_EQ(shape.bytes_all_layers(), 30u * 1152u);
  EXPECT_EQ(segments_bytes(shape, 0, 2), 1024u * 1152u);
  EXPECT_EQ(segments_bytes(shape, 31, 33), (512u + 2048u) * 1152u);
  EXPECT_EQ(segments_bytes(shape, 5, 5), 0u);
}

// A low-bit row has parameters beside its values, and what it is exactly is another shape.
TEST(Layout, LowBitRows) {
  const RowShape int8{.layers = 2, .kv_heads = 3, .head_dim = 64, .k_type = DType::kInt8, .v_type = DType::kInt8};
  EXPECT_TRUE(int8.has_low_bit());
  EXPECT_EQ(int8.k_bytes(), 3u * 66u);
  EXPECT_EQ(int8.bytes_all_layers(), 2u * 2u * 3u * 66u);
  EXPECT_EQ(int8.exact().bytes(), 2u * 3u * 128u);
  EXPECT_FALSE(int8.exact().has_low_bit());
  RowShape mixed{.layers = 2, .kv_heads = 1, .head_dim = 64, .k_type = DType::kInt8, .v_type = DType::kF16};
  mixed.exact_type = DType::kF32;
  EXPECT_TRUE(mixed.has_low_bit());
  EXPECT_EQ(mixed.exact().k_type, DType::kF32);
  EXPECT_EQ(mixed.exact().v_type, DType::kF16);
  EXPECT_EQ(mixed.exact().exact().bytes(), mixed.exact().bytes());
}

// What is read from a disk and saved is in whole pages, and a large segment takes four times a small one.
TEST(Layout, SegmentsAreInWholePages) {
  const DType types[] = {DType::kF32, DType::kBF16, DType::kInt8};
  for (const DType k_type : types) {
    for (const DType v_type : types) {
      for (const int64_t kv_heads : {1, 2, 3}) {
        const RowShape shape{.layers = 1, .kv_heads = kv_heads, .head_dim = 64, .k_type = k_type, .v_type = v_type};
        const uint64_t small = segments_bytes(shape, 0, 1), exact = 512 * shape.bytes();
        EXPECT_EQ(small % kPageBytes, 0u);
        EXPECT_GE(small, exact);
        EXPECT_LT(small, exact + kPageBytes);
        if (!shape.has_low_bit()) {
          EXPECT_EQ(small, exact);
        }
        EXPECT_EQ(segments_bytes(shape, 31, 33), 5 * small);
      }
    }
  }
}

// Parts of a segment are whole tiles and divide it, are never smaller than those before, and are longer where more KV
// heads share the work. Those of 131,072 rows are read in one call.
TEST(Layout, AttentionReadsSegmentsInParts) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kInt4}) {
    int64_t fewest = kMaxPrefixParts;
    for (const int64_t kv_heads : {1, 2, 3, 4, 5, 8, 16, 64}) {
      int64_t parts = 0, before = 0;
      for (int64_t i = 0; i < segments_for(131072); ++i) {
        const SegmentRange range = segment_range(i);
        const int64_t rows = attention_part_rows(range.begin, kv_heads, type, type);
        EXPECT_EQ(rows % kPrefixTile, 0) << range.begin;
        EXPECT_EQ(range.rows % rows, 0) << range.begin;
        EXPECT_GE(rows, before) << range.begin;
        before = rows;
        parts += range.rows / rows;
      }
      EXPECT_LE(parts, fewest) << kv_heads << " heads of " << dtype_name(type);
      fewest = parts;
    }
  }
  EXPECT_EQ(attention_part_rows(20480, 8, DType::kBF16, DType::kBF16), 1024);
  EXPECT_EQ(attention_part_rows(40960, 8, DType::kBF16, DType::kBF16), 2048);
  EXPECT_EQ(attention_part_rows(40960, 8, DType::kInt8, DType::kBF16), 1024) << "one of the two";
  EXPECT_EQ(attention_part_rows(40960, 4, DType::kInt4, DType::kInt4), 1024);
  EXPECT_EQ(attention_part_rows(20480, 8, DType::kInt4, DType::kInt4), 2048);
}

TEST(Layout, ARowOfLlama8BIs128KiB) {
  const RowShape shape{.layers = 32, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(shape.bytes_all_layers(), 128 * kKiB);
}

}  // namespace
}  // namespace headrace
