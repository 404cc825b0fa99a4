// The rings of layers with a window: which rows they have after prefill and commits, and what snapshots bring back.
#include "runtime/kv/window_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "offload/device/backends.h"
#include "runtime/kv/state_snapshots.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

struct Types {
  DType k, v;
};

class Windows : public ::testing::TestWithParam<std::tuple<DeviceChoice, Types>> {
 protected:
  static constexpr int64_t kLayers = 2, kHeads = 3, kDim = 8, kBuiltRows = 4096;

  RowShape rows() const {
    const Types types = std::get<1>(GetParam());
    return {.layers = kLayers, .kv_heads = kHeads, .head_dim = kDim, .k_type = types.k, .v_type = types.v};
  }
  WindowShape shape(int64_t window, int64_t context) const {
    return {.rows = rows(), .window = window, .slots = window_slots(window, context), .built_rows = kBuiltRows};
  }

  // A plane is K or V; a row's bytes say which row it is.
  static std::byte byte_of(int64_t layer, int64_t row, int64_t head, bool v, uint64_t i) {
    const uint64_t mixed =
        static_cast<uint64_t>(row) * 2654435761u + static_cast<uint64_t>(head * 97 + layer * 31) + (v ? 7 : 0) + i * 13;
    return static_cast<std::byte>((mixed >> 3) ^ mixed);
  }
  // Calls visit(offset, bytes, values) for the values and the parameters of a row in K or V of `stride` rows.
  template <typename Visit>
  void each_part(int64_t stride, int64_t place, int64_t head, bool v, const Visit& visit) const {
    const DType type = v ? rows().v_type : rows().k_type;
    const uint64_t value = row_value_bytes(type, kDim), parameter = row_parameter_bytes(type, kDim);
    const uint64_t before = v ? static_cast<uint64_t>(stride) * rows().k_bytes() : 0;
    const auto index = static_cast<uint64_t>(head * stride + place);
    visit(before + index * value, value);
    const uint64_t parameters = before + static_cast<uint64_t>(kHeads * stride) * value;
    if (parameter > 0) visit(parameters + index * parameter, parameter);
  }
  void write_row(std::byte* data, int64_t stride, int64_t place, int64_t layer, int64_t row) const {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (const bool v : {false, true}) {
        uint64_t i = 0;
        each_part(stride, place, head, v, [&](uint64_t offset, uint64_t bytes) {
          for (uint64_t b = 0; b < bytes; ++b) data[offset + b] = byte_of(layer, row, head, v, i++);
        });
      }
    }
  }
  bool has_row(const std::byte* data, int64_t stride, int64_t place, int64_t layer, int64_t row) const {
    bool same = true;
    for (int64_t head = 0; head < kHeads; ++head) {
      for (const bool v : {false, true}) {
        uint64_t i = 0;
        each_part(stride, place, head, v, [&](uint64_t offset, uint64_t bytes) {
          for (uint64_t b = 0; b < bytes; ++b) same = same && data[offset + b] == byte_of(layer, row, head, v, i++);
        });
      }
    }
    return same;
  }

  // The ring of segments in which prefill has built the first `count` rows of a layer, with those from `first` on.
  DeviceBuffer built(int64_t layer, int64_t first, int64_t count) {
    const int64_t ring = shape(1, count).built_ring_rows(count);
    const uint64_t bytes = ring_bytes(rows(), ring);
    PinnedBuffer host = device->allocate_pinned(bytes, "built");
    std::fill_n(host.data(), bytes, std::byte{0x5a});
    for (int64_t row = first; row < count; ++row) {
      const SegmentRange range = segment_range(segment_of(row));
      write_row(host.data() + ring_offset(rows(), ring, segment_of(row)), range.rows, row - range.begin, layer, row);
    }
    DeviceBuffer buffer = device->allocate(bytes, "built");
    stream->copy(buffer.data(), host.data(), bytes, Link::kHostToDevice, "built");
    stream->synchronize();
    return buffer;
  }
  std::vector<std::byte> download(const void* data, uint64_t bytes) {
    PinnedBuffer host = device->allocate_pinned(bytes, "read");
    stream->copy(host.data(), static_cast<const std::byte*>(data), bytes, Link::kDeviceToHost, "read");
    stream->synchronize();
    return {host.data(), host.data() + bytes};
  }

  const std::unique_ptr<Device> device = open_device({.choice = std::get<0>(GetParam()), .threads = 2});
  const std::unique_ptr<Stream> stream = device->make_stream("test", StreamRole::kCompute);
};
INSTANTIATE_TEST_SUITE_P(
    Types, Windows,
    ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                       ::testing::Values(Types{DType::kBF16, DType::kBF16}, Types{DType::kF32, DType::kF16},
                                         Types{DType::kInt8, DType::kInt8}, Types{DType::kBF16, DType::kInt8})),
    [](const auto& given) {
      const Types types = std::get<1>(given.param);
      return testing::device_name(std::get<0>(given.param)) + "_" + dtype_name(types.k) + "_" + dtype_name(types.v);
    });

// Of prompts that end in each place of a slot, before and behind the first segment of 2,048 rows.
TEST_P(Windows, HaveTheLastRowsOfAPrompt) {
  for (const int64_t window : {1, 512, 700, 1024}) {
    for (const int64_t prompt : {5, 512, 1500, 16384, 16385, 18944, 20000}) {
      const WindowShape window_shape = shape(window, prompt + 100);
      WindowRows windows(*device, window_shape, 4);
      const DeviceBuffer exact = device->allocate(segments_bytes(rows().exact(), 0, segments_for(prompt)), "exact");
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const DeviceBuffer rows_of = built(layer, std::max<int64_t>(0, prompt - 4096), prompt);
        const bool same = !rows().has_low_bit();
        windows.store_layer(layer, prompt, rows_of.data(), same ? rows_of.data() : exact.data(), *stream);
        stream->synchronize();
      }
      windows.finish_prefill(prompt);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        int64_t next = -1;
        for (const KvSegment& slot : windows.slots(layer, prompt)) {
          EXPECT_TRUE(next < 0 || slot.position == next);
          next = slot.position + slot.rows;
          // From the slot's first row of the first head on; a ring of exact rows has K of all layers first.
          const int64_t stride = slot.stride_rows, held = kHeads * stride - (slot.position % stride);
          const auto k = static_cast<uint64_t>(stride) * rows().k_bytes();
          std::vector<std::byte> there =
              download(slot.k, rows().has_low_bit() ? window_shape.slot_bytes()
                                                    : static_cast<uint64_t>(held) * kDim * dtype_bytes(rows().k_type));
          if (rows().has_low_bit()) {
            EXPECT_EQ(slot.v, static_cast<const std::byte*>(slot.k) + k);
          } else {
            EXPECT_EQ(stride, window_shape.slots * kWindowSlotRows);
            there.resize(k);
            const std::vector<std::byte> v =
                download(slot.v, static_cast<uint64_t>(held) * kDim * dtype_bytes(rows().v_type));
            there.insert(there.end(), v.begin(), v.end());
          }
          int64_t wrong = 0;
          for (int64_t row = slot.position; row < std::min<int64_t>(prompt, next); ++row) {
            if (!has_row(there.data(), stride, row - slot.position, layer, row)) ++wrong;
          }
          EXPECT_EQ(wrong, 0) << "window " << window << " prompt " << prompt << " slot at " << slot.position;
        }
        EXPECT_GE(next, prompt);
        EXPECT_LE(windows.slots(layer, prompt).front().position, std::max<int64_t>(0, prompt + 1 - window));
      }
    }
  }
}

TEST_P(Windows, SnapshotsBringTheRowsBack) {
  for (const int64_t window : {64, 100, 700, 1024}) {
    const WindowShape window_shape = shape(window, 30000);
    const SnapshotShape snapshot(window_shape);
    for (const int64_t position : {64, 2048, 16384, 16448, 18432, 20032}) {
      const DeviceBuffer from = built(1, std::max<int64_t>(0, position - 2048), position + 3);
      const int64_t ring = window_shape.built_ring_rows(position + 3);
      PinnedBuffer part = device->allocate_pinned(StateSnapshots::part_bytes(snapshot), "part");
      std::fill_n(part.data(), part.bytes(), std::byte{0x77});
      save_window(window_shape, {from.data(), ring}, position, part.data(), *stream);
      stream->synchronize();
      for (uint64_t i = snapshot.used_bytes(); i < part.bytes(); ++i) ASSERT_EQ(part.data()[i], std::byte{0x77});
      const DeviceBuffer to = built(1, 1 << 20, position + 3);  // no rows
      restore_window(window_shape, part.data(), position, {to.data(), ring}, *stream);
      const std::vector<std::byte> there = download(to.data(), to.bytes());
      const int64_t first = std::max<int64_t>(0, position - window_shape.snapshot_rows());
      ASSERT_LE(first, std::max<int64_t>(0, position + 1 - window));
      int64_t wrong = 0, more = 0;
      for (int64_t row = std::max<int64_t>(0, first - 100); row < position; ++row) {
        const SegmentRange range = segment_range(segment_of(row));
        const std::byte* const segment = there.data() + ring_offset(rows(), ring, segment_of(row));
        const bool same = has_row(segment, range.rows, row - range.begin, 1, row);
        (row < first ? more : wrong) += same == (row < first) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << "window " << window << " at " << position;
      EXPECT_EQ(more, 0) << "window " << window << " at " << position;
    }
  }
}

TEST(WindowSizes, DoNotGrowWithTheContext) {
  // Gemma 3 27B: 52 layers, 16 KV heads of 128.
  const RowShape rows{.layers = 52, .kv_heads = 16, .head_dim = 128};
  const auto of = [&](int64_t context) {
    return WindowShape{.rows = rows, .window = 1024, .slots = window_slots(1024, context)};
  };
  EXPECT_EQ(of(131072).bytes(), 624 * kMiB);  // 416 MiB of the window, and a slot of 512 rows
  EXPECT_EQ(of(4096).bytes(), of(131072).bytes());
  EXPECT_EQ(of(300).slots, 1);
  EXPECT_EQ(StateSnapshots::bytes(SnapshotShape(of(4096))), 416 * kMiB);
  const RowShape none{};
  EXPECT_EQ(WindowRows::bytes({.rows = none, .window = 0, .slots = 0}, 64), 0u);
}

// A group's queries see their windows, and a snapshot behind any of its rows has its rows.
TEST(WindowSizes, PrefillHasTheRowsThatAGroupSees) {
  for (const int64_t window : {1, 64, 100, 1024, 1984, 4000}) {
    for (const int64_t group : {64, 256, 2048}) {
      WindowShape shape{.window = window, .built_rows = window_built_rows(window, group)};
      EXPECT_GE(shape.built_rows, shape.snapshot_rows() + group) << window;
      EXPECT_EQ(shape.built_rows % kLargeSegmentRows, 0) << window;
      EXPECT_EQ(shape.built_ring_rows(100), kSmallSegmentRows) << window;
      EXPECT_EQ(shape.built_ring_rows(1 << 20), shape.built_rows) << window;
      shape.built_rows = 0;
      EXPECT_EQ(shape.built_ring_rows(20000), kLargeSegmentsFrom + 2 * kLargeSegmentRows) << window;
    }
  }
  EXPECT_EQ(window_built_rows(1024, 2048), 4096);
}

}  // namespace
}  // namespace headrace
