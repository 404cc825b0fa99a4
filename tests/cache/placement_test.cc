// Where segments live: each in one tier, the disk's share spread evenly.
#include "cache/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace headrace {
namespace {

const RowShape kShape{.layers = 3, .kv_heads = 2, .head_dim = 16, .k_type = DType::kF32, .v_type = DType::kF32};
constexpr uint64_t kSmallUnit = 512 * 256, kLargeUnit = 2048 * 256;

std::string tiers(const SegmentPlacement& placement) {
  std::string text;
  for (int64_t i = 0; i < placement.segments(); ++i) text += tier_name(placement.tier(i))[0];
  return text;
}

TEST(Places, TheDisksShareIsSpreadEvenly) {
  EXPECT_EQ(tiers(SegmentPlacement(kShape, 10, 2, kSmallUnit, 0)), "vvhhhhhhhh");
  EXPECT_EQ(tiers(SegmentPlacement(kShape, 10, 2, kSmallUnit, 1)), "vvhhhhhhhd");
  EXPECT_EQ(tiers(SegmentPlacement(kShape, 10, 2, kSmallUnit, 2)), "vvhhhdhhhd");
  EXPECT_EQ(tiers(SegmentPlacement(kShape, 10, 2, kSmallUnit, 4)), "vvhdhdhdhd");
  EXPECT_EQ(tiers(SegmentPlacement(kShape, 10, 2, kSmallUnit, 8)), "vvdddddddd");
  EXPECT_EQ(tiers(SegmentPlacement(kShape, 10, 2, 3 * kSmallUnit, 1)), "vvhhhhhhdd");  // units of three segments
  EXPECT_EQ(tiers(SegmentPlacement(kShape, 10, 10, kSmallUnit, 0)), "vvvvvvvvvv");
}

// A unit that is too small for a segment is one segment; large segments come one by one where small ones came in fours.
TEST(Places, UnitsAreWholeSegments) {
  EXPECT_EQ(SegmentPlacement(kShape, 7, 0, 1, 0).units(), 7);
  const SegmentPlacement placement(kShape, 36, 0, kLargeUnit, 12);
  EXPECT_EQ(placement.units(), 12);  // 32 small segments in fours, 4 large ones
  EXPECT_EQ(placement.disk_bytes(), 12 * kLargeUnit);
  EXPECT_EQ(placement.largest_unit_bytes(), kLargeUnit);
}

TEST(Places, OffsetsTileEachTier) {
  for (const int64_t disk_units : {0, 1, 5, 11}) {
    const SegmentPlacement placement(kShape, 38, 3, kLargeUnit, disk_units);
    uint64_t end[3] = {};
    for (int64_t i = 0; i < placement.segments(); ++i) {
      uint64_t& tier_end = end[static_cast<size_t>(placement.tier(i))];
      EXPECT_EQ(placement.offset_bytes(i), tier_end);
      tier_end += segments_bytes(kShape, i, i + 1);
    }
    EXPECT_EQ(placement.resident_bytes(), segments_bytes(kShape, 0, 3));
    EXPECT_EQ(placement.resident_bytes(), end[0]);
    EXPECT_EQ(placement.host_bytes(), end[1]);
    EXPECT_EQ(placement.disk_bytes(), end[2]);
    EXPECT_EQ(end[0] + end[1] + end[2], segments_bytes(kShape, 0, 38));
  }
}

}  // namespace
}  // namespace headrace
