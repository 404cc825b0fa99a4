#include "cache/stream_schedule.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

const RowShape kStreamedShape{
    .layers = 3, .kv_heads = 2, .head_dim = 16, .k_type = DType::kF32, .v_type = DType::kF32};  // 256 bytes a row

// The places of a layer of many segments, the first of them resident, none on disk.
StreamSchedule plan_stream(const RowShape& shape, int64_t resident, int64_t sealed, uint64_t slot_bytes) {
  return headrace::plan_stream(shape, SegmentPlacement(shape, 60, resident, 1, 0), sealed, slot_bytes);
}

TEST(StreamScheduleTest, NothingToStreamIsAnEmptyPlan) {
  for (const auto& [resident, sealed] : {std::pair<int64_t, int64_t>{0, 0}, {5, 5}, {7, 5}}) {
    const StreamSchedule schedule = plan_stream(kStreamedShape, resident, sealed, 1 * kMiB);
    EXPECT_EQ(schedule.fills(), 0);
    EXPECT_EQ(schedule.bytes(), 0u);
    EXPECT_EQ(schedule.to_string(), "nothing is streamed");
  }
}

// Chunks cover exactly the segments that are sealed and not resident, in order, each contiguous and no larger than a
// slot.
TEST(StreamScheduleTest, ChunksTileTheHostSegments) {
  for (const int64_t resident : {0, 1, 5, 31, 32, 40}) {
    for (const int64_t sealed : {0, 1, 6, 32, 33, 50}) {
      for (const uint64_t slot : {2048 * 256u, 4096 * 256u, 2560 * 256u + 7, 1u << 30}) {
        const StreamSchedule schedule = plan_stream(kStreamedShape, resident, sealed, slot);
        int64_t next = resident;
        uint64_t offset = 0;
        for (const Chunk& chunk : schedule.chunks) {
          EXPECT_EQ(chunk.first_segment, next);
          EXPECT_GT(chunk.last_segment, chunk.first_segment);
          EXPECT_EQ(chunk.offset_bytes, offset);
          EXPECT_EQ(chunk.bytes, segments_bytes(kStreamedShape, chunk.first_segment, chunk.last_segment));
          EXPECT_LE(chunk.bytes, slot);
          next = chunk.last_segment;
          offset += chunk.bytes;
        }
        EXPECT_EQ(next, std::max(resident, sealed));
        EXPECT_EQ(schedule.bytes(), sealed > resident ? 3 * segments_bytes(kStreamedShape, resident, sealed) : 0);
      }
    }
  }
}

TEST(StreamScheduleTest, SlotsAreFilledAsFarAsSegmentsGo) {
  const StreamSchedule schedule = plan_stream(kStreamedShape, 0, 8, 3 * 512 * 256);
  ASSERT_EQ(schedule.chunks.size(), 3u);
  EXPECT_EQ(schedule.chunks[0].last_segment, 3);
  EXPECT_EQ(schedule.chunks[2].last_segment, 8);
}

TEST(StreamScheduleTest, PrintsWhatItStreams) {
  const StreamSchedule schedule = plan_stream(kStreamedShape, 4, 7, 2 * 512 * 256);
  EXPECT_EQ(schedule.to_string(),
            "stream, in each of 3 layers: segments 4..5 (256.00 KiB), 6..6 (128.00 KiB); 1.12 MiB in all");
}

// The streamer keeps what it fetched ahead as long as the plan is the same; a segment more is another plan.
TEST(StreamScheduleTest, ASegmentMoreIsAnotherPlan) {
  EXPECT_EQ(plan_stream(kStreamedShape, 2, 9, kMiB), plan_stream(kStreamedShape, 2, 9, kMiB));
  EXPECT_FALSE(plan_stream(kStreamedShape, 2, 9, kMiB) == plan_stream(kStreamedShape, 2, 10, kMiB));
}

// Chunks never mix tiers; what comes from disk comes by the unit, and all of it once.
TEST(StreamScheduleTest, ChunksLieInOneTier) {
  for (const int64_t disk_units : {1, 3, 7, 15}) {
    const SegmentPlacement placement(kStreamedShape, 30, 0, 2 * 512 * 256, disk_units);
    ASSERT_EQ(placement.units(), 15);
    for (const int64_t sealed : {1, 13, 30}) {
      const StreamSchedule schedule = headrace::plan_stream(kStreamedShape, placement, sealed, 5 * 512 * 256);
      uint64_t from[3] = {};
      int64_t next = 0;
      for (const Chunk& chunk : schedule.chunks) {
        EXPECT_EQ(chunk.first_segment, next);
        for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) EXPECT_EQ(placement.tier(i), chunk.tier);
        EXPECT_TRUE(chunk.tier != Tier::kDisk || chunk.bytes <= placement.largest_unit_bytes());
        uint64_t& end = from[static_cast<size_t>(chunk.tier)];
        EXPECT_EQ(chunk.offset_bytes, end);
        end += chunk.bytes;
        next = chunk.last_segment;
      }
      EXPECT_EQ(next, sealed);
      EXPECT_EQ(schedule.disk_bytes(), 3 * from[static_cast<size_t>(Tier::kDisk)]);
      EXPECT_TRUE(sealed < 30 || from[static_cast<size_t>(Tier::kDisk)] == placement.disk_bytes());
      EXPECT_EQ(schedule.bytes(), 3 * segments_bytes(kStreamedShape, 0, sealed));
    }
  }
}

TEST(StreamScheduleTest, SaysWhatComesFromDisk) {
  const StreamSchedule schedule =
      headrace::plan_stream(kStreamedShape, SegmentPlacement(kStreamedShape, 8, 4, 512 * 256, 2), 7, 2 * 512 * 256);
  EXPECT_EQ(schedule.to_string(),
            "stream, in each of 3 layers: segments 4..4 (128.00 KiB), 5..5 (128.00 KiB, disk), 6..6 (128.00 KiB); "
            "1.12 MiB in all");
}

TEST(StreamScheduleDeathTest, ASlotHoldsASegment) {
  EXPECT_DEATH(plan_stream(kStreamedShape, 0, 1, 100), "segment 0 in a slot of 100");
}

}  // namespace
}  // namespace headrace
