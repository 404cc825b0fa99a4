// What blocks a partial KV keeps.
#include "runtime/kv/partial_kv.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

constexpr RowShape kShape{.layers = 1, .kv_heads = 2, .head_dim = 4, .k_type = DType::kF32, .v_type = DType::kF32};
constexpr int64_t kRows = 1000, kBlocks = 3;

// Keys whose size falls from row to row, so that a score prefers the first ones. Returns the rows that are kept after
// the sinks, by their values.
std::vector<float> kept_rows(BlockScore score) {
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  const std::unique_ptr<Stream> stream = device->make_stream("compute", StreamRole::kCompute);
  std::vector<float> keys(kShape.kv_heads * kRows * kShape.head_dim), values(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto row = static_cast<float>(i / kShape.head_dim % kRows);
    keys[i] = kRows - row;
    values[i] = row;
  }
  PartialKv partial(*device, kShape, {.shape = {.blocks = kBlocks}, .score = score}, kRows);
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
}

}  // namespace
}  // namespace headrace
