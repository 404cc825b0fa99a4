#include "cache/layout.h"

#include <gtest/gtest.h>

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

TEST(Layout, ARowOfLlama8BIs128KiB) {
  const RowShape shape{.layers = 32, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(shape.bytes_all_layers(), 128 * kKiB);
}

}  // namespace
}  // namespace headrace
