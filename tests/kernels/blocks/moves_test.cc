// Blocks gathered from segments, and the window copied from the tail ring: bytes against bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/blocks/op.h"
#include "tests/kernels/blocks/numbers.h"
#include "tests/support/kernel_test.h"
#include "tests/support/low_bit_rows.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::index;
using testing_support::KernelTest;

using Bytes = std::vector<std::byte>;

constexpr std::byte kUnwritten{0xff};  // as KernelTest::output() fills it

size_t element(int64_t place, DType type) { return index(place) * dtype_bytes(type); }

// Different everywhere, and never what an output is filled with.
Bytes numbered(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 255);
  return bytes;
}

void copy_elements(Bytes& to, int64_t to_element, const Bytes& from, int64_t from_element, int64_t count, DType type) {
  std::memcpy(&to[element(to_element, type)], &from[element(from_element, type)], element(count, type));
}

// ---- Gathering ------------------------------------------------------------------------------------------------------

struct GatherCase {
  int64_t kv_heads = 2, head_dim = 64, keep = 4, out_rows = 64;
  DType k_type = DType::kBF16, v_type = DType::kBF16;
  bool int8 = false;  // both, in the segments

  DType stored(DType type) const { return int8 ? DType::kInt8 : type; }
};

struct Segment {
  int64_t position, rows, stride_rows;
};

class GatherTest : public KernelTest {
 protected:
  void TearDown() override {  // before the device
    held_.clear();
    KernelTest::TearDown();
  }

  void add(const Segment& segment) {
    Held held{segment, {}, {}, {}, {}};
    held.k_array = upload(rows_of(segment, held_.size() * 2 + 1, case_.k_type, &held.k));
    held.v_array = upload(rows_of(segment, held_.size() * 2 + 2, case_.v_type, &held.v));
    held_.push_back(std::move(held));
  }
  void reset(const GatherCase& c) {
    case_ = c;
    held_.clear();
  }

  // chosen: [kv_heads][keep]. Gathers with one call for each of `calls`, which lists segments.
  void check(const std::vector<std::vector<int32_t>>& chosen, const std::vector<std::vector<size_t>>& calls) {
    const GatherCase& c = case_;
    const int64_t elements = c.kv_heads * c.out_rows * c.head_dim;
    const DeviceArray k_out = output(element(elements, c.k_type)), v_out = output(element(elements, c.v_type));
    std::vector<int32_t> flat;
    for (const std::vector<int32_t>& head : chosen) flat.insert(flat.end(), head.begin(), head.end());
    const DeviceArray list = upload_raw(flat);
    Bytes k(element(elements, c.k_type), kUnwritten), v(element(elements, c.v_type), kUnwritten);
    for (const std::vector<size_t>& call : calls) {
      GatherBlocksParams params{list.as<int32_t>(),
                                k_out.data(),
                                v_out.data(),
                                c.k_type,
                                c.v_type,
                                c.stored(c.k_type),
                                c.stored(c.v_type),
                                c.kv_heads,
                                c.head_dim,
                                c.keep,
                                c.out_rows,
                                0,
                                {}};
      for (size_t i : call) {
        const Held& held = held_[i];
        params.segments[params.segment_count++] = {
            held.k_array.data(), held.v_array.data(), static_cast<int32_t>(held.at.position),
            static_cast<int32_t>(held.at.rows), static_cast<int32_t>(held.at.stride_rows)};
        expect(held, chosen, k, v);
      }
      gather_blocks(params, stream());
    }
    EXPECT_TRUE(download(k_out) == k);
    EXPECT_TRUE(download(v_out) == v);
  }

 private:
  struct Held {
    Segment at;
    Bytes k, v;  // exact
    DeviceArray k_array, v_array;
  };
  // A segment's plane. exact: its rows in `type`.
  Bytes rows_of(const Segment& segment, uint64_t seed, DType type, Bytes* exact) const {
    const int64_t elements = case_.kv_heads * segment.stride_rows * case_.head_dim;
    if (!case_.int8) return *exact = numbered(seed, element(elements, type));
    const Bytes plane =
        testing_support::low_bit_plane(testing_support::random_values(seed, elements), DType::kInt8, case_.head_dim);
    *exact = testing_support::encode(testing_support::low_bit_values(plane, DType::kInt8, case_.head_dim), type);
    return plane;
  }
  void expect(const Held& held, const std::vector<std::vector<int32_t>>& chosen, Bytes& k, Bytes& v) const {
    const GatherCase& c = case_;
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      for (int64_t slot = 0; slot < c.keep; ++slot) {
        const int64_t row = chosen[index(head)][index(slot)] * kBlockRows - held.at.position;
        if (row < 0 || row >= held.at.rows) continue;
        const int64_t to = (head * c.out_rows + slot * kBlockRows) * c.head_dim;
        const int64_t from = (head * held.at.stride_rows + row) * c.head_dim;
        copy_elements(k, to, held.k, from, kBlockRows * c.head_dim, c.k_type);
        copy_elements(v, to, held.v, from, kBlockRows * c.head_dim, c.v_type);
      }
    }
  }

  GatherCase case_;
  std::vector<Held> held_;
};

TEST_P(GatherTest, CopiesEachHeadsBlocksToTheirSlots) {
  for (int64_t head_dim : {64, 80, 96, 128, 256, 512}) {
    reset({.head_dim = head_dim, .out_rows = 80});  // the last block of rows is nobody's
    add({0, 128, 128});
    add({128, 128, 128});
    check({{0, 3, 9, 15}, {1, 7, 8, 10}}, {{0, 1}});
  }
}

TEST_P(GatherTest, LeavesSlotsOfBlocksThatLieElsewhere) {
  reset({});
  add({64, 64, 128});  // strides beyond the rows
  add({256, 48, 256});
  check({{0, 4, 16, 20}, {7, 8, 15, 18}}, {{0, 1}});
  check({{0, 1, 2, 3}, {8, 9, 10, 11}}, {{0, 1}});
  check({{0, 4, 16, 20}, {7, 8, 15, 18}}, {{1}});
  check({{0, 4, 16, 20}, {7, 8, 15, 18}}, {{}});
}

TEST_P(GatherTest, TakesSegmentsInAnyOrderAndInManyCalls) {
  reset({.kv_heads = 3, .keep = 5, .out_rows = 96, .k_type = DType::kF16, .v_type = DType::kF32});
  for (int64_t position : {192, 0, 64, 128}) add({position, 64, 64});
  const std::vector<std::vector<int32_t>> chosen = {{0, 4, 8, 11, 12}, {3, 5, 6, 7, 15}, {1, 2, 9, 10, 14}};
  check(chosen, {{0, 1, 2, 3}});
  check(chosen, {{3}, {0}, {2, 1}});
}

TEST_P(GatherTest, CopiesRowsOfAnyWidth) {
  for (int64_t head_dim : {2, 6, 30}) {
    for (DType type : testing_support::kAllTypes) {
      reset({.kv_heads = 3, .head_dim = head_dim, .out_rows = 65, .k_type = type, .v_type = DType::kF16});
      add({0, 128, 129});
      check({{0, 1, 6, 7}, {2, 3, 4, 5}, {0, 2, 4, 6}}, {{0}});
    }
  }
}

TEST_P(GatherTest, DequantisesInt8) {
  for (int64_t head_dim : {18, 64, 80, 128}) {
    for (DType type : testing_support::kAllTypes) {
      reset({.head_dim = head_dim, .out_rows = 70, .k_type = type, .v_type = DType::kBF16, .int8 = true});
      add({64, 64, 77});
      add({128, 48, 48});
      check({{4, 5, 7, 10}, {0, 6, 8, 9}}, {{0, 1}});
    }
  }
}

TEST_P(GatherTest, TakesAsManySegmentsAsACallMayHave) {
  reset({.kv_heads = 8, .head_dim = 64, .keep = 256, .out_rows = 4200});
  for (int64_t i = 0; i < kMaxPrefixSegments; ++i) add({i * 128, 128, 128});
  std::mt19937_64 random(5);
  std::vector<int32_t> all(index(kMaxPrefixSegments * 8));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  std::vector<std::vector<int32_t>> chosen;
  for (int head = 0; head < 8; ++head) {
    std::shuffle(all.begin(), all.end(), random);
    chosen.emplace_back(all.begin(), all.begin() + 256);
    std::sort(chosen.back().begin(), chosen.back().end());
  }
  std::vector<size_t> call(index(kMaxPrefixSegments));
  for (size_t i = 0; i < call.size(); ++i) call[i] = i;
  check(chosen, {call});
}

INSTANTIATE_KERNEL_TEST(GatherTest);

// ---- The window -----------------------------------------------------------------------------------------------------

struct WindowCase {
  int64_t layers, kv_heads, head_dim, ring_rows, out_rows, origin, first_position, count;
  int64_t layer_gap = 0;  // elements between the layers of the window
  DType k_type = DType::kBF16, v_type = DType::kBF16;
};

class WindowTest : public KernelTest {
 protected:
  void check(const WindowCase& c) {
    SCOPED_TRACE(str("ring_rows=", c.ring_rows, " first_position=", c.first_position, " count=", c.count));
    const int64_t ring = c.layers * c.kv_heads * c.ring_rows * c.head_dim;
    const int64_t layer = c.kv_heads * c.out_rows * c.head_dim + c.layer_gap;
    const Bytes ring_k = numbered(1, element(ring, c.k_type)), ring_v = numbered(2, element(ring, c.v_type));
    Bytes k(element(c.layers * layer, c.k_type), kUnwritten), v(element(c.layers * layer, c.v_type), kUnwritten);
    const DeviceArray k_in = upload(ring_k), v_in = upload(ring_v), k_out = output(k.size()), v_out = output(v.size());
    copy_window({k_in.data(), v_in.data(), k_out.data(), v_out.data(), c.k_type, c.v_type, c.layers, c.kv_heads,
                 c.head_dim, c.ring_rows, c.out_rows, element(layer, c.k_type), element(layer, c.v_type), c.origin,
                 c.first_position, c.count},
                stream());
    for (int64_t head = 0; head < c.layers * c.kv_heads; ++head) {
      for (int64_t p = c.first_position; p < c.first_position + c.count; ++p) {
        const int64_t from = (head * c.ring_rows + p % c.ring_rows) * c.head_dim;
        const int64_t to = head / c.kv_heads * layer + (head % c.kv_heads * c.out_rows + p - c.origin) * c.head_dim;
        copy_elements(k, to, ring_k, from, c.head_dim, c.k_type);
        copy_elements(v, to, ring_v, from, c.head_dim, c.v_type);
      }
    }
    EXPECT_TRUE(download(k_out) == k);
    EXPECT_TRUE(download(v_out) == v);
  }
};

TEST_P(WindowTest, CopiesRowsOfAllLayers) {
  check({3, 2, 64, 100, 80, 32, 40, 20});
  check({1, 1, 128, 64, 64, 0, 0, 64});
  check({testing::kSanitized ? 2 : 32, 8, 128, 512, 300, 60000, 60128, 60});
  check({2, 2, 64, 100, 80, 32, 40, 0});
}

TEST_P(WindowTest, FollowsTheRingAroundItsEnd) {
  check({2, 3, 64, 50, 90, 128, 140, 30});
  check({2, 3, 64, 50, 90, 128, 130, 50});
  check({2, 3, 64, 50, 90, 100, 149, 1});
  check({2, 3, 64, 50, 90, 100, 100, 50});
}

TEST_P(WindowTest, KeepsEachSidesTypeAndWidth) {
  for (DType k_type : testing_support::kAllTypes) {
    for (int64_t head_dim : {6, 80, 96, 256, 512}) {
      check({2, 2, head_dim, 33, 41, 16, 20, 21, 2, k_type, DType::kF16});
      check({2, 2, head_dim, 33, 41, 16, 57, 0, 0, k_type, DType::kF32});
    }
  }
}

INSTANTIATE_KERNEL_TEST(WindowTest);

}  // namespace
}  // namespace headrace
