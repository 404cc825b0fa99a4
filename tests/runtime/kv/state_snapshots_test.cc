// Which states prefill keeps of a prompt, and how long.
#include "runtime/kv/state_snapshots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

using Positions = std::vector<int64_t>;

TEST(SnapshotPositions, AreTheLastMultiplesAndFarOnes) {
  EXPECT_EQ(snapshot_positions(1, 64), Positions{});
  EXPECT_EQ(snapshot_positions(79, 64), Positions{});
  EXPECT_EQ(snapshot_positions(80, 64), Positions{64});
  EXPECT_EQ(snapshot_positions(2048, 64), Positions{1984});
  EXPECT_EQ(snapshot_positions(2049, 64), (Positions{1984, 2048}));
  EXPECT_EQ(snapshot_positions(7000, 64), (Positions{2048, 4096, 6144, 6976}));
  EXPECT_EQ(snapshot_positions(9000, 64), (Positions{4096, 6144, 8192, 8960}));
  EXPECT_EQ(snapshot_positions(40000, 64), (Positions{16384, 32768, 34816, 36864, 38912, 39936}));
  EXPECT_EQ(snapshot_positions(2048 * 17 + 16, 64), (Positions{16384, 30720, 32768, 34816}));
  EXPECT_EQ(snapshot_positions(9000, 2048), (Positions{4096, 6144, 8192}));
  EXPECT_EQ(snapshot_positions(2050, 2048), Positions{2048});
  EXPECT_EQ(snapshot_positions(1500, 512), Positions{1024});
}

// Where there is room for fewer, the far ones are farther apart. The last ones stay.
TEST(SnapshotPositions, AreThinnedFarFromTheEnd) {
  const Positions all = snapshot_positions(140000, 64);
  EXPECT_EQ(all.size(), 12u);
  EXPECT_EQ(snapshot_positions(140000, 64, 12), all);
  EXPECT_EQ(snapshot_positions(140000, 64, 11),
            (Positions{32768, 65536, 98304, 131072, 135168, 137216, 139264, 139968}));
  EXPECT_EQ(snapshot_positions(140000, 64, 6), (Positions{65536, 131072, 135168, 137216, 139264, 139968}));
  EXPECT_EQ(snapshot_positions(140000, 64, 5), (Positions{131072, 135168, 137216, 139264, 139968}));
  EXPECT_EQ(snapshot_positions(140000, 64, 4), (Positions{135168, 137216, 139264, 139968}));
  for (int64_t tokens = 1; tokens < 300000; tokens += 997) {
    for (int64_t most = kLeastSnapshots - 1; most < 22; ++most) {
      ASSERT_LE(static_cast<int64_t>(snapshot_positions(tokens, 64, most).size()), most) << tokens;
    }
  }
}

TEST(SnapshotPositions, AreNoMoreThanPlanned) {
  int64_t most = 0;
  for (int64_t tokens = 1; tokens < 70000; ++tokens) {
    for (const int64_t unit : {64, 512, 2048}) {
      const Positions positions = snapshot_positions(tokens, unit);
      ASSERT_TRUE(std::is_sorted(positions.begin(), positions.end()));
      for (const int64_t at : positions) ASSERT_TRUE(at > 0 && at < tokens && at % unit == 0) << tokens << " " << at;
      most = std::max(most, static_cast<int64_t>(positions.size()) + 1);  // and the one that it resumed from
    }
    ASSERT_GE(most_snapshots(tokens), most) << tokens;
  }
}

class Snapshots : public ::testing::Test {
 protected:
  // States that are all `value`.
  void fill(RecurrentState& states, float value) {
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      std::fill_n(states.state(layer), shape.state_bytes() / sizeof(float), value + static_cast<float>(layer));
      std::fill_n(static_cast<float*>(states.conv(layer)), shape.conv_bytes() / sizeof(float), -value);
    }
  }
  void expect(float value) {
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      EXPECT_EQ(live.state(layer)[3], value + static_cast<float>(layer));
      EXPECT_EQ(static_cast<float*>(live.conv(layer))[5], -value);
    }
  }
  // Of a prefill from `first` on; a snapshot holds its position.
  void prefill(int64_t first, const Positions& positions, int64_t most, bool whole = true) {
    snapshots.begin(first, positions, most);
    int64_t at = first;
    for (const int64_t position : positions) {
      EXPECT_EQ(snapshots.next(at, 1 << 20), position);
      EXPECT_EQ(snapshots.next(at, position - 1), 0);
      fill(live, static_cast<float>(position));
      for (int64_t layer = 0; layer < shape.layers; ++layer) snapshots.take(position, layer, live, *stream);
      stream->synchronize();
      at = position;
    }
    EXPECT_EQ(snapshots.next(at, 1 << 20), 0);
    snapshots.end(whole);
  }
  Positions held() const {
    Positions positions;
    for (int64_t at = snapshots.last(1 << 20); at > 0; at = snapshots.last(at - 1)) positions.push_back(at);
    return positions;
  }

  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  const std::unique_ptr<Stream> stream = device->make_stream("test", StreamRole::kCompute);
  const RecurrentShape shape{.layer = {.k_heads = 1, .v_heads = 2, .k_dim = 8, .v_dim = 8, .tiled = false},
                             .layers = 3,
                             .pass_rows = 1,
                             .type = DType::kF32};
  RecurrentState live{*device, shape};
  StateSnapshots snapshots{*device, shape};
};

TEST_F(Snapshots, GiveBackWhatWasTaken) {
  prefill(0, {64, 128}, 4);
  for (const int64_t position : {64, 128}) {
    fill(live, 0);
    snapshots.restore(position, live, *stream);
    stream->synchronize();
    expect(static_cast<float>(position));
  }
  EXPECT_EQ(StateSnapshots::bytes(shape) % kPageBytes, 0u);
  for (uint64_t i = shape.state_bytes() + shape.conv_bytes(); i < StateSnapshots::part_bytes(shape); ++i) {
    ASSERT_EQ(snapshots.part(128, 1)[i], std::byte{0});
  }
}

TEST_F(Snapshots, StayWhileThereIsRoomAndTheTokensAreTheSame) {
  const uint64_t one = StateSnapshots::bytes(shape), before = device->host_mem().used_bytes();
  prefill(0, {64, 128}, 4);
  prefill(128, {192, 256}, 4);
  EXPECT_EQ(held(), (Positions{256, 192, 128, 64}));
  prefill(256, {320}, 4);
  EXPECT_EQ(held(), (Positions{320, 256, 192, 128}));
  prefill(192, {512}, 4);
  EXPECT_EQ(held(), (Positions{512, 192, 128}));
  prefill(512, {1024, 2048, 3072}, 4);
  EXPECT_EQ(held(), (Positions{3072, 2048, 1024, 512}));
  EXPECT_EQ(device->host_mem().used_bytes(), before + 4 * one);
  fill(live, 0);
  snapshots.restore(512, live, *stream);
  stream->synchronize();
  expect(512);
}

// Whatever came between: a prompt that goes far back finds the multiples that its own prefill would keep.
TEST_F(Snapshots, ThatAreWantedStayLongest) {
  prefill(0, {1024, 2048, 2240}, 4);
  snapshots.begin(2240, Positions{1024, 2048, 2240, 2304}, 4);
  EXPECT_EQ(snapshots.next(0, 1 << 20), 2304);
  snapshots.end(true);
  snapshots.begin(2304, Positions{1024, 2048, 2368}, 4);
  snapshots.end(true);
  EXPECT_EQ(held(), (Positions{2368, 2304, 2048, 1024}));
  snapshots.begin(2368, Positions{1024, 2432}, 4);
  snapshots.end(true);
  EXPECT_EQ(held(), (Positions{2432, 2368, 2304, 1024}));
}

// Behind a saved prefix: taken from what was read.
TEST_F(Snapshots, TheFirstIsNewWhereItIsNotThere) {
  snapshots.begin(64, Positions{64, 128}, 3);
  EXPECT_EQ(snapshots.next(63, 64), 64);
  EXPECT_EQ(snapshots.next(64, 200), 128);
  snapshots.end(true);
  snapshots.begin(64, Positions{64, 192}, 3);
  EXPECT_EQ(snapshots.next(63, 64), 0);
  EXPECT_EQ(snapshots.next(64, 200), 192);
}

TEST_F(Snapshots, OfAnInterruptedPrefillAreDropped) {
  prefill(0, {64, 128}, 4);
  prefill(64, {192, 256}, 4, false);
  EXPECT_EQ(held(), Positions{64});
}

}  // namespace
}  // namespace headrace
