// A draft's cache shows each query the rows it should see, wherever the ring has put them.
#include "runtime/draft/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

constexpr int64_t kCachedHeads = 2, kCachedDim = 4, kPassRows = 20;

// A cache on the CPU whose rows carry their position in every element, the head added.
class DraftCacheTest : public ::testing::Test {
 protected:
  void open(int64_t window, int64_t context) {
    shape_ = {.rows = {.layers = 2,
                       .kv_heads = kCachedHeads,
                       .head_dim = kCachedDim,
                       .k_type = DType::kF32,
                       .v_type = DType::kF32},
              .context_rows = context,
              .window = window,
              .pass_rows = kPassRows,
              .most_taken_back = kMaxPending};
    cache_.emplace(*device_, shape_);
  }

  static float element(int64_t layer, int64_t position, int64_t head, bool is_v) {
    return static_cast<float>(position * 10 + head * 2 + layer * 4 + (is_v ? 1 : 0));
  }

  // Appends `count` rows, as if a pass had made them, its rows in reverse order.
  void append(int64_t count) {
    std::vector<int32_t> source(static_cast<size_t>(count));
    for (int64_t j = 0; j < count; ++j) {
      source[static_cast<size_t>(j)] = static_cast<int32_t>(count - 1 - j);
      for (int64_t layer = 0; layer < shape_.rows.layers; ++layer) {
        const KvRows to = cache_->pass_rows_from(layer, count - 1 - j);
        for (int64_t head = 0; head < kCachedHeads; ++head) {
          for (int64_t i = 0; i < kCachedDim; ++i) {
            static_cast<float*>(to.k)[head * to.head_stride + i] = element(layer, cache_->rows() + j, head, false);
            static_cast<float*>(to.v)[head * to.head_stride + i] = element(layer, cache_->rows() + j, head, true);
          }
        }
      }
    }
    cache_->append(source.data(), count, *stream_);
    stream_->synchronize();
  }

  void expect_row(const void* base, int64_t row, int64_t stride_rows, int64_t layer, int64_t position, bool is_v) {
    for (int64_t head = 0; head < kCachedHeads; ++head) {
      const float* const at = static_cast<const float*>(base) + (head * stride_rows + row) * kCachedDim;
      for (int64_t i = 0; i < kCachedDim; ++i) ASSERT_EQ(at[i], element(layer, position, head, is_v)) << position;
    }
  }

  // Every row that a query at rows() + ahead sees before its tail is there, in order, and is the right one.
  void expect_prefix(int64_t ahead) {
    const int64_t position = cache_->rows() + ahead, first = shape_.first_kept(cache_->rows());
    std::vector<int64_t> wanted;
    if (first > 0) wanted = {0, 1, 2, 3};
    for (int64_t row = first; row < tail_begin(position); ++row) wanted.push_back(row);
    for (int64_t layer = 0; layer < shape_.rows.layers; ++layer) {
      std::vector<KvSegment> segments;
      cache_->prefix(layer, position, &segments);
      std::vector<int64_t> seen;
      for (const KvSegment& segment : segments) {
        ASSERT_EQ(segment.position % kPrefixTile, 0);
        if (!shape_.windowed()) {
          EXPECT_EQ(segment.rows % kSmallSegmentRows, 0);
        }
        for (int64_t row = 0; row < segment.rows && segment.position + row < tail_begin(position); ++row) {
          seen.push_back(segment.position + row);
          expect_row(segment.k, row, segment.stride_rows, layer, segment.position + row, false);
          expect_row(segment.v, row, segment.stride_rows, layer, segment.position + row, true);
        }
      }
      ASSERT_EQ(seen, wanted) << "at " << position;
      const TailRows tail = cache_->tail(layer);
      for (int64_t row = tail_begin(position); row < cache_->rows(); ++row) {
        expect_row(tail.ring_k, row % shape_.ring_rows(), shape_.ring_rows(), layer, row, false);
        expect_row(tail.ring_v, row % shape_.ring_rows(), shape_.ring_rows(), layer, row, true);
      }
    }
  }

  const std::unique_ptr<Device> device_ = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  const std::unique_ptr<Stream> stream_ = device_->make_stream("compute", StreamRole::kCompute);
  DraftCacheShape shape_;
  std::optional<DraftCache> cache_;
};

TEST_F(DraftCacheTest, AWindowSeesItsSinksAndItsLastRows) {
  open(kMinDraftWindow, 5000);
  ASSERT_TRUE(shape_.windowed());
  for (int64_t step = 0; cache_->rows() < 3500; ++step) {
    append(1 + step * 7 % kPassRows);
    expect_prefix(0);
    expect_prefix(9);
  }
}

// Rows that are taken back are written anew; what the window then sees is what it saw before, to the oldest row.
TEST_F(DraftCacheTest, WhatIsTakenBackIsSeenAsBefore) {
  for (const int64_t window : {int64_t{0}, kMinDraftWindow, int64_t{700}}) {
    open(window, 4000);
    while (cache_->rows() < 3000) {
      const int64_t before = cache_->rows();
      for (int64_t more = 0; more < kMaxPending; more += 16) append(16);
      expect_prefix(0);
      if (HasFatalFailure()) return;
      const int64_t back = before < kDraftSinkRows ? kDraftSinkRows : before;
      cache_->rewind(back);
      EXPECT_EQ(cache_->rows(), back);
      expect_prefix(0);
      if (HasFatalFailure()) return;
      append(17);
    }
  }
}

TEST_F(DraftCacheTest, WithoutAWindowAllIsSeen) {
  open(0, 1200);
  EXPECT_FALSE(shape_.windowed());
  while (cache_->rows() + kPassRows <= 1200) {
    append(kPassRows);
    expect_prefix(5);
  }
}

TEST_F(DraftCacheTest, AContextWithinTheWindowNeedsNoMore) {
  open(4096, 1000);
  EXPECT_FALSE(shape_.windowed());
  EXPECT_EQ(shape_.ring_rows(), 1024);
}

TEST_F(DraftCacheTest, MemoryDoesNotGrowWithTheContext) {
  open(2048, 100'000);
  const uint64_t bytes = shape_.bytes();
  shape_.context_rows = 1'000'000;
  EXPECT_EQ(shape_.bytes(), bytes);
  EXPECT_EQ(device_->vram().peak_bytes(), bytes);
}

}  // namespace
}  // namespace headrace
