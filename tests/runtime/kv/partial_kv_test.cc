// What blocks a partial KV keeps.
#include "runtime/kv/partial_kv.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace headrace {
namespace {

constexpr RowShape kShape{.layers = 1, .kv_heads = 2, .head_dim = 4, .k_type = DType::kF32, .v_type = DType::kF32};
constexpr int64_t kRows = 1000, kBlocks = 3;

// Keys whose size falls from row to row, so that a score prefers the first ones. Returns the rows that are kept after
// the sinks, by their values.
std::vector<float> kept_rows(BlockScore score, int64_t window = kTailWindow) {
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  const std::unique_ptr<Stream> stream = device->make_stream("compute", StreamRole::kCompute);
  std::vector<float> keys(kShape.kv_heads * kRows * kShape.head_dim), values(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto row = static_cast<float>(i / kShape.head_dim % kRows);
    keys[i] = kRows - row;
    values[i] = row;
  }
  PartialKv partial(*device, kShape, {.shape = {.blocks = kBlocks, .window = window}, .score = score}, kRows);
  const std::vector<float> query(kShape.kv_heads * kShape.head_dim, 1.0f);
  const KvSegment segment{.k = keys.data(), .v = values.data(), .position = 0, .rows = kRows, .stride_rows = kRows};
  partial.fill_layer(0, kRows, {&segment, 1},
                     {.q = query.data(),
                      .type = DType::kF32,
                      .count = 1,
                      .heads = kShape.kv_heads,
                      .stride = kShape.kv_heads * kShape.head_dim},
                     *stream);
  stream->synchronize();
  std::vector<float> rows;
  const KvSegment retrieved = partial.segments(0, kRows)[1];
  for (int64_t row = 0; row < kBlocks * kBlockRows; ++row) {
    rows.push_back(static_cast<const float*>(retrieved.v)[row * kShape.head_dim]);
  }
  return rows;
}

std::vector<float> rows_from(int64_t first) {
  std::vector<float> rows;
  for (int64_t row = first; row < first + kBlocks * kBlockRows; ++row) rows.push_back(static_cast<float>(row));
  return rows;
}

TEST(PartialKv, KeepsWhatItsScorePrefers) {
  EXPECT_EQ(kept_rows(BlockScore::kQuest), rows_from(kSinkRows));
  EXPECT_EQ(kept_rows(BlockScore::kSpecPv), rows_from(kSinkRows));
}

TEST(PartialKv, KeepsTheLastBlocksBeforeTheTail) {
  EXPECT_EQ(kept_rows(BlockScore::kRecent), rows_from(tail_begin(kRows) - kBlocks * kBlockRows));
  EXPECT_EQ(kept_rows(BlockScore::kRecent, 128), rows_from(832 - kBlocks * kBlockRows));
}

// Two layers of a cache with random rows, and what a partial KV has of them.
class LateFill : public ::testing::Test {
 protected:
  static constexpr int64_t kLayers = 2, kSegments = 2, kSegmentRows = 512;
  static constexpr RowShape kTwo{
      .layers = kLayers, .kv_heads = 2, .head_dim = 4, .k_type = DType::kF32, .v_type = DType::kF32};
  static constexpr int64_t kSegmentElements = kTwo.kv_heads * kSegmentRows * kTwo.head_dim;

  LateFill() {
    std::minstd_rand random(7);
    std::normal_distribution<float> normal;
    for (std::vector<float>* rows : {&keys_, &values_, &queries_}) {
      for (float& value : *rows) value = normal(random);
    }
  }
  KvSegment segment(int64_t layer, int64_t index) const {
    const int64_t offset = (layer * kSegments + index) * kSegmentElements, first = index * kSegmentRows;
    return {.k = keys_.data() + offset,
            .v = values_.data() + offset,
            .position = static_cast<int32_t>(first),
            .rows = static_cast<int32_t>(std::min(kSegmentRows, kRows - first)),
            .stride_rows = kSegmentRows};
  }
  ScoringQueries queries(int64_t layer) const {
    return {.q = queries_.data() + layer * kTwo.kv_heads * kTwo.head_dim,
            .type = DType::kF32,
            .count = 1,
            .heads = kTwo.kv_heads,
            .stride = kTwo.kv_heads * kTwo.head_dim};
  }
  void prefill(PartialKv& partial) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      partial.fill_layer(layer, kRows, std::vector{segment(layer, 0), segment(layer, 1)}, queries(layer), *stream_);
    }
  }
  // As the cache has them: the first segment arrives last.
  void fill_late(PartialKv& partial) {
    stream_->synchronize();  // allocate_late() requires it
    partial.allocate_late();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (const int64_t index : {1, 0}) partial.fill_late(layer, std::vector{segment(layer, index)}, *stream_);
    }
  }
  // The sinks and the retrieved blocks of all layers: keys, then values of each run of rows.
  std::vector<float> contents(const PartialKv& partial) {
    stream_->synchronize();
    std::vector<float> all;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (const KvSegment& run : partial.segments(layer, kRows).first(2)) {
        for (const void* const rows : {run.k, run.v}) {
          for (int64_t head = 0; head < kTwo.kv_heads; ++head) {
            const float* const from = static_cast<const float*>(rows) + head * run.stride_rows * kTwo.head_dim;
            all.insert(all.end(), from, from + run.rows * kTwo.head_dim);
          }
        }
      }
    }
    return all;
  }
  // What a refresh selects, which is by all summaries.
  void refresh(PartialKv& partial) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      partial.choose(layer, kRows, 0, queries(kLayers - 1 - layer), *stream_);
      partial.gather(layer, std::vector{segment(layer, 0), segment(layer, 1)}, *stream_);
    }
  }

  const std::unique_ptr<Device> device_ = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  const std::unique_ptr<Stream> stream_ = device_->make_stream("compute", StreamRole::kCompute);
  const PartialOptions options_{.shape = {.blocks = kBlocks}};
  std::vector<float> keys_ = std::vector<float>(kLayers * kSegments * kSegmentElements), values_ = keys_,
                     queries_ = std::vector<float>(kLayers * kTwo.kv_heads * kTwo.head_dim);
};

TEST_F(LateFill, HasTheBlocksOfAnEarlyOne) {
  PartialKv early(*device_, kTwo, options_, kRows), late(*device_, kTwo, options_, kRows, true);
  prefill(early);
  prefill(late);
  fill_late(late);
  const std::vector<float> filled = contents(early);
  EXPECT_EQ(filled.size(), static_cast<size_t>(kLayers * 2 * 2 * (kSinkRows + kBlocks * kBlockRows) * 4));
  EXPECT_EQ(contents(late), filled);
  refresh(early);
  refresh(late);
  EXPECT_NE(contents(early), filled) << "other queries were meant to select other blocks";
  EXPECT_EQ(contents(late), contents(early));
}

TEST_F(LateFill, TakesItsMemoryAfterPrefill) {
  const uint64_t before = device_->vram().used_bytes();
  PartialKv late(*device_, kTwo, options_, kRows, true);
  prefill(late);
  stream_->synchronize();
  const uint64_t summaries = block_index_bytes(kTwo, kRows), blocks = options_.shape.bytes(kTwo, kRows);
  const uint64_t work = PartialKv::work_bytes(kTwo, options_.shape, kRows);
  EXPECT_LE(device_->vram().used_bytes() - before, whole_pages(summaries / kLayers) + work);
  late.allocate_late();
  EXPECT_LE(device_->vram().used_bytes() - before, whole_pages(summaries) + whole_pages(blocks) + work);
  EXPECT_GE(device_->vram().used_bytes() - before, summaries + blocks);
}

}  // namespace
}  // namespace headrace
