// A draft that reads the target's last layer finds all of its rows on the device, whatever --kv and the budget say, and
// the text stays the same.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/product/op.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;

constexpr int64_t kPrompt = 1500, kTokens = 60;  // from the third segment into the fourth

// Proposes nothing, and looks.
class Reader final : public Draft {
 public:
  DraftMemory memory() const override { return {}; }
  bool reads_last_layer() const override { return true; }
  void allocate(Stream& compute) override { compute_ = &compute; }
  void attach(const KvCache& target) override { cache_ = &target; }
  void prefill_layer(const LayerInput&) override {}
  bool finish_prefill(std::span<const int32_t>, Progress*, const std::atomic<bool>*) override { return true; }
  void propose(int32_t root, int64_t, const TreeLimits&, Tree* tree) override { tree->reset(root); }
  void pass_layer(const LayerInput&) override {}
  void rewind(int64_t) override {}
  void observe(const Tree&, const Acceptance&) override {}
  void observe_query(const TargetQuery& query) override {
    EXPECT_EQ(query.type, DType::kF32);
    last_query.resize(kQuery);
    compute_->copy(last_query.data(), query.q, kQuery * sizeof(float), Link::kDeviceToHost);
    compute_->synchronize();
    refresh = query.refresh;
    ++looks;
  }

  static constexpr size_t kQuery = 4 * 16;  // of llama31
  std::vector<float> last_query;
  bool refresh = false;
  int looks = 0;

  // K, then V of each committed row of the last layer, head by head.
  std::vector<std::byte> rows(Device& device) const {
    const RowShape& shape = cache_->shape();
    std::vector<std::byte> all;
    for (int64_t i = 0; i < segments_for(cache_->rows()); ++i) {
      const KvSegment segment = cache_->resident_segment(shape.layers - 1, i);
      const int64_t count = std::min<int64_t>(segment.rows, cache_->rows() - segment.position);
      for (const auto& [base, row_bytes] : {std::pair(segment.k, shape.k_bytes()), {segment.v, shape.v_bytes()}}) {
        const uint64_t head_bytes = row_bytes / static_cast<uint64_t>(shape.kv_heads);
        const uint64_t bytes = static_cast<uint64_t>(segment.stride_rows) * row_bytes;
        const PinnedBuffer host = device.allocate_pinned(bytes, "rows to look at");
        compute_->copy(host.data(), base, bytes, Link::kDeviceToHost);
        compute_->synchronize();
        for (int64_t head = 0; head < shape.kv_heads; ++head) {
          const std::byte* const from = host.data() + static_cast<uint64_t>(head * segment.stride_rows) * head_bytes;
          all.insert(all.end(), from, from + static_cast<uint64_t>(count) * head_bytes);
        }
      }
    }
    return all;
  }

 private:
  const KvCache* cache_ = nullptr;
  Stream* compute_ = nullptr;
};

struct LastLayerRun {
  std::vector<int32_t> tokens;
  std::vector<std::byte> rows;
  MemoryPlan plan;
  uint64_t in_bytes = 0;
};

LastLayerRun run_reading(const LoadedModel& model, KvMode kv) {
  Reader reader;
  SessionOptions options = model.options(kPrompt, kTokens);
  options.kv = kv;
  options.ring.slots = 1;  // so that the ring is smaller than what it streams
  options.ring.slot_bytes = 1;
  options.draft = &reader;
  const auto session = model.session(options);
  LastLayerRun said;
  said.plan = session->plan();
  const std::vector<int32_t> prompt =
      testing::made_up_ids(kPrompt, static_cast<int32_t>(model.checkpoint->config().vocab));
  const uint64_t in = model.device->bytes_over(Link::kHostToDevice);
  said.tokens = testing::decode_plainly(*session, prompt, kTokens);
  said.in_bytes = model.device->bytes_over(Link::kHostToDevice) - in;
  said.rows = reader.rows(*model.device);
  return said;
}

class LastLayer : public ::testing::TestWithParam<DeviceChoice> {};

INSTANTIATE_TEST_SUITE_P(Devices, LastLayer, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(LastLayer, IsReadableInEveryMode) {
  const uint64_t taken = open_device({.choice = GetParam()})->vram().used_bytes();  // by the backend itself
  const LoadedModel whole(testing::tiny_model("llama31"), DType::kF32, GetParam());
  const uint64_t products = product_workspace_bytes(*whole.compute);  // that the first run makes and the stream keeps
  const LastLayerRun device = run_reading(whole, KvMode::kDevice), host = run_reading(whole, KvMode::kHost);
  const RowShape rows{.layers = 4, .kv_heads = 2, .head_dim = 16, .k_type = DType::kF32, .v_type = DType::kF32};
  ASSERT_EQ(device.rows.size(), static_cast<size_t>(kPrompt + kTokens - 1) * rows.bytes());

  EXPECT_EQ(host.plan.resident_segments, 0);
  EXPECT_EQ(host.plan.host_layers, 3);
  EXPECT_EQ(host.tokens, device.tokens);
  EXPECT_EQ(host.rows, device.rows);
  // Three layers' sealed segments in every step, and no more.
  const uint64_t step = 3 * segments_bytes(rows, 0, segment_of(kPrompt)), steps = kTokens - 1;
  EXPECT_GE(host.in_bytes, step * steps);
  EXPECT_LT(host.in_bytes, 4 * segments_bytes(rows, 0, segment_of(kPrompt)) * steps);

  const uint64_t least = host.plan.vram_bytes + products;
  const uint64_t limit = taken + whole.weights.bytes() + least + 4 * segments_bytes(rows, 0, 2) + 64 * kKiB;
  const LoadedModel small(testing::tiny_model("llama31"), DType::kF32, GetParam(), 2, limit);
  const LastLayerRun part = run_reading(small, KvMode::kAuto);
  EXPECT_GT(part.plan.resident_segments, 0);
  EXPECT_LT(part.plan.resident_segments, part.plan.segments);
  EXPECT_EQ(part.tokens, device.tokens);
  EXPECT_EQ(part.rows, device.rows);
  EXPECT_LE(small.device->vram().peak_bytes(), small.device->vram().limit_bytes());
}

// The query that it gets after a pass is that of the accepted path's last token: what prefill of the same text gives.
TEST_P(LastLayer, ShowsTheQueryOfTheLastAcceptedToken) {
  const LoadedModel model(testing::tiny_model("llama31"), DType::kF32, GetParam());
  constexpr size_t kPrompted = 700;
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompted + 3, 512);
  const std::span<const int32_t> all(ids);
  const auto expect_near = [](const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4f * (1 + std::abs(b[i]))) << i;
  };
  const auto query_of = [&](size_t tokens) {
    Reader reader;
    SessionOptions options = model.options(static_cast<int64_t>(tokens), 8);
    options.draft = &reader;
    const auto session = model.session(options);
    session->prefill(all.first(tokens), nullptr, nullptr);
    EXPECT_EQ(reader.looks, 1);
    EXPECT_TRUE(reader.refresh);
    return reader.last_query;
  };
  Reader reader;
  SessionOptions options = model.options(kPrompted, 40);
  options.draft = &reader;
  options.pass_rows = 8;
  const auto session = model.session(options);
  session->prefill(all.first(kPrompted), nullptr, nullptr);
  Tree tree;  // the text's next token, one that is not, and two more of the text below the first
  tree.reset(ids[kPrompted]);
  tree.add(ids[0], 0);
  tree.add(ids[kPrompted + 1], 0);
  tree.add(ids[kPrompted + 2], 2);
  session->verify(tree);
  Acceptance path;
  path.nodes = {0, 2, 3};
  session->commit(path);
  EXPECT_EQ(reader.looks, 2);
  EXPECT_FALSE(reader.refresh);
  expect_near(reader.last_query, query_of(kPrompted + 3));
  tree.reset(ids[1]);
  session->verify(tree);
  path.nodes = {0};
  session->commit(path);
  EXPECT_EQ(reader.looks, 3);
  EXPECT_GT(std::abs(reader.last_query[0] - query_of(kPrompted + 3)[0]), 1e-3f) << "the query did not change";
}

}  // namespace
}  // namespace headrace
