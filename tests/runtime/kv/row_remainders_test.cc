// Rows that are streamed as what their int8 copy lacks of them (docs/design.md, section 8): every segment that arrives
// has the bits that prefill stored, whether it has remainders or not.
#include "runtime/kv/row_remainders.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/kv/kv_streamer.h"
#include "runtime/kv/row_copy.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

constexpr RowShape kShape{.layers = 2, .kv_heads = 2, .head_dim = 64};
constexpr int64_t kRows = 2200;  // four full segments and a part of one
constexpr uint64_t kSegmentBytes = 512 * 2 * 64 * 2 * 2;

// A layer's segments in bf16, as prefill builds them.
std::vector<uint16_t> layer_rows(uint32_t seed) {
  std::vector<uint16_t> bits(segments_bytes(kShape, 0, segments_for(kRows)) / 2);
  uint32_t state = seed;
  for (uint16_t& value : bits) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<uint16_t>((state >> 16 & 0x8000) | (0x3e00 + (state >> 8) % 0x180));  // 1/8 to 1
  }
  return bits;
}

// Makes the rows of a segment tiny beside the first value of each: all are listed.
void make_tiny(std::vector<uint16_t>* bits, int64_t segment) {
  const size_t first = segments_bytes(kShape, 0, segment) / 2, end = segments_bytes(kShape, 0, segment + 1) / 2;
  for (size_t i = first; i < end; ++i) {
    if (i % 64 != 0) (*bits)[i] = static_cast<uint16_t>((*bits)[i] - 0x1000);
  }
}

class Remainders : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  Remainders()
      : device(open_device({.choice = GetParam(), .threads = 2})),
        compute(device->make_stream("compute", StreamRole::kCompute)) {}

  MemoryPlan plan(KvMode mode, uint64_t slot, bool remainders = true) {
    PlanInput in;
    in.rows = kShape;
    in.prompt_rows = kRows;
    in.context_rows = kRows + 100;
    in.mode = mode;
    in.partial = partial;
    in.vram_free = in.host_free = kGiB;
    in.ring = {.slots = 2, .slot_bytes = slot};
    in.remainders = remainders;
    if (mode == KvMode::kAuto) {  // room for one resident segment
      in.mode = KvMode::kHost;
      in.vram_free = make_plan(in).vram_bytes + kShape.layers * kSegmentBytes;
      in.mode = KvMode::kAuto;
    }
    return make_plan(in);
  }

  void begin(const MemoryPlan& plan) {
    slots = plan.ring_slots;
    slot_bytes = plan.ring_slot_bytes;
    cache = std::make_unique<KvCache>(*device, kShape, plan, 1,
                                      std::make_unique<KvBacking>(*device, kShape, plan, KvBackingOptions{}));
    buffer = device->allocate(segments_bytes(kShape, 0, segments_for(kRows)), "a layer");
  }

  // Stores rows [kept, kRows) of all layers, by a new copy.
  void store(const std::vector<std::vector<uint16_t>>& layers, int64_t kept = 0) {
    copy = std::make_unique<RowCopy>(*device, kShape, partial, kRows + 100, false);
    const auto copied = device->make_event();
    for (int64_t layer = 0; layer < kShape.layers; ++layer) {
      const std::vector<uint16_t>& bits = layers[static_cast<size_t>(layer)];
      compute->copy(buffer.data(), bits.data(), 2 * bits.size(), Link::kHostToDevice);
      std::vector<KvSegment> segments;
      for (int64_t i = 0; i < segments_for(kRows); ++i) {
        segments.push_back(segment_view(kShape, buffer.data() + segments_bytes(kShape, 0, i), i));
        segments.back().rows = static_cast<int32_t>(std::min<int64_t>(512, kRows - 512 * i));
      }
      copy->fill_layer(layer, kRows, segments, {}, *compute);
      cache->store_layer(layer, {.end = kRows, .kept = kept},
                         {.stored = buffer.data(), .exact = buffer.data(), .copy = copy->copy(layer)}, *compute,
                         *copied);
      copied->synchronize();
    }
    cache->finish_prefill(kRows);
  }

  // Streams all layers twice; returns the bytes that crossed the link.
  uint64_t expect_streamed(const std::vector<std::vector<uint16_t>>& layers) {
    LinkQueue link(*device);
    KvStreamer streamer(*device, cache->backing(), link, {0, 1}, {slots, slot_bytes});
    const uint64_t before = device->bytes_over(Link::kHostToDevice);
    streamer.begin_step(cache->sealed_segments());
    EXPECT_FALSE(streamer.schedule().chunks.empty());
    for (int64_t layer = 0; layer < 2 * kShape.layers; ++layer) {
      const int64_t at = layer % kShape.layers;
      for (const Chunk& chunk : streamer.schedule().chunks) {
        streamer.take(copy->copy(at), *compute);
        for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) {
          std::vector<uint16_t> got(kSegmentBytes / 2);
          compute->copy(got.data(), streamer.segment(i).k, kSegmentBytes, Link::kDeviceToHost);
          compute->synchronize();
          const uint16_t* const stored = layers[static_cast<size_t>(at)].data() + segments_bytes(kShape, 0, i) / 2;
          EXPECT_EQ(std::memcmp(got.data(), stored, kSegmentBytes), 0) << "layer " << at << ", segment " << i;
        }
        streamer.done(*compute);
      }
    }
    return device->bytes_over(Link::kHostToDevice) - before;
  }

  const PartialShape partial{.copy = DType::kInt8};
  const std::unique_ptr<Device> device;
  const std::unique_ptr<Stream> compute;
  int slots = 0;
  uint64_t slot_bytes = 0;
  DeviceBuffer buffer;
  std::unique_ptr<RowCopy> copy;
  std::unique_ptr<KvCache> cache;
};
INSTANTIATE_TEST_SUITE_P(Devices, Remainders, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(Remainders, SpareTwoThirdsOfARefresh) {
  const std::vector<std::vector<uint16_t>> layers = {layer_rows(1), layer_rows(2)};
  uint64_t bytes[2];
  for (const bool on : {false, true}) {
    begin(plan(KvMode::kHost, 1, on));
    EXPECT_EQ(cache->backing().remainders() != nullptr, on);
    store(layers);
    bytes[on] = expect_streamed(layers);
  }
  EXPECT_LT(bytes[1], bytes[0] * 35 / 100);
  EXPECT_GT(bytes[1], bytes[0] / 6);
}

// Segments whose remainders have no room are streamed as they are, beside others in the same chunk.
TEST_P(Remainders, AreNotUsedWithoutRoom) {
  std::vector<std::vector<uint16_t>> layers = {layer_rows(1), layer_rows(2)};
  make_tiny(&layers[0], 1);
  make_tiny(&layers[1], 0);
  make_tiny(&layers[1], 3);
  for (const uint64_t slot : {uint64_t{1}, 3 * kSegmentBytes, 8 * kSegmentBytes}) {
    begin(plan(KvMode::kHost, slot));
    store(layers);
    const RowRemainders& remainders = *cache->backing().remainders();
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(remainders.has(0, i), i != 1) << i;
      EXPECT_EQ(remainders.has(1, i), i != 0 && i != 3) << i;
    }
    EXPECT_FALSE(remainders.has(0, 4)) << "it is not full";
    expect_streamed(layers);
  }
}

TEST_P(Remainders, OfThoseThatAreNotResident) {
  const std::vector<std::vector<uint16_t>> layers = {layer_rows(1), layer_rows(2)};
  begin(plan(KvMode::kAuto, 2 * kSegmentBytes));
  ASSERT_EQ(cache->resident_segments(), 1);
  store(layers);
  EXPECT_FALSE(cache->backing().remainders()->has(0, 0));
  EXPECT_TRUE(cache->backing().remainders()->has(0, 1));
  expect_streamed(layers);
}

// A run on rows that an earlier one has left: what changes loses its remainders and has new ones, the rest keeps them.
TEST_P(Remainders, FollowRowsThatAreKept) {
  std::vector<std::vector<uint16_t>> layers = {layer_rows(1), layer_rows(2)};
  begin(plan(KvMode::kHost, 2 * kSegmentBytes));
  store(layers);
  cache->keep(700);
  RowRemainders& remainders = *cache->backing().remainders();
  EXPECT_TRUE(remainders.has(1, 0));
  EXPECT_FALSE(remainders.has(1, 1));
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const std::vector<uint16_t> other = layer_rows(7 + layer);
    const auto from = static_cast<int64_t>(segments_bytes(kShape, 0, 1) / 2);
    std::copy(other.begin() + from, other.end(), layers[layer].begin() + from);
  }
  make_tiny(&layers[0], 2);  // its length is that of the new rows
  store(layers, 700);
  EXPECT_FALSE(remainders.has(0, 2));
  EXPECT_TRUE(remainders.has(1, 3));
  expect_streamed(layers);
}

// Memory that the system does not give costs no run: rows are streamed as they are.
TEST_P(Remainders, AreNotUsedWithoutMemory) {
  const std::vector<std::vector<uint16_t>> layers = {layer_rows(1), layer_rows(2)};
  begin(plan(KvMode::kHost, 2 * kSegmentBytes, false));
  store(layers);
  const uint64_t whole = expect_streamed(layers);
  MemoryPlan more = plan(KvMode::kHost, 2 * kSegmentBytes);
  more.remainder_layer_bytes = 1024 * kGiB;  // beyond any budget
  more.remainder_bytes = 2 * more.remainder_layer_bytes;
  begin(more);
  EXPECT_TRUE(cache->backing().remainders()->wants(0, 0));
  store(layers);
  EXPECT_FALSE(cache->backing().remainders()->wants(1, 3));
  EXPECT_FALSE(cache->backing().remainders()->has(0, 0));
  EXPECT_EQ(expect_streamed(layers), whole);
}

TEST_P(Remainders, TakeWhatThePlanCounts) {
  MemoryBudget& budget = device->host_mem();
  budget.reset_peak();
  const uint64_t vram = device->vram().used_bytes(), host = budget.own_peak_bytes();
  const MemoryPlan with = plan(KvMode::kHost, 2 * kSegmentBytes);
  {
    const auto backing = std::make_unique<KvBacking>(*device, kShape, with, KvBackingOptions{});
    backing->wait_for_host_memory();
    const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (budget.own_peak_bytes() - host < KvBacking::pinned_bytes(with) && std::chrono::steady_clock::now() < most) {
      std::this_thread::yield();
    }
    EXPECT_EQ(device->vram().used_bytes() - vram, with.remainder_work_bytes);
    EXPECT_EQ(budget.own_peak_bytes() - host, with.host_bytes + with.remainder_bytes + with.remainder_lengths_bytes);
    EXPECT_EQ(KvBacking::pinned_bytes(with), budget.own_peak_bytes() - host);
  }
  budget.reset_peak();
  EXPECT_EQ(budget.own_peak_bytes(), host);
}

}  // namespace
}  // namespace headrace
