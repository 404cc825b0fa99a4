#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/rows/op.h"
#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::random_values;
using testing_support::rounded;

size_t index_of(int64_t index) { return static_cast<size_t>(index); }

// ---- Commit -------------------------------------------------------------------------------------------------------

class CommitTest : public testing_support::KernelTest {};
INSTANTIATE_KERNEL_TEST(CommitTest);

TEST_P(CommitTest, RowsGoToTheRingAndTheOpenSegment) {
  constexpr int64_t kLayers = 3, kHeads = 2, kDim = 10, kPassRows = 7, kRingRows = 12, kActiveRows = 32;
  constexpr int64_t kFirst = 41, kActivePosition = 32, kCount = 5;  // 41..45; the ring wraps at 48: not yet, and at 36
  const DType k_type = DType::kBF16, v_type = DType::kF32;
  for (int64_t first : {kFirst, int64_t{33}, int64_t{46}}) {  // 46..50 wraps the ring
    const std::vector<int32_t> source = {6, 0, 3, 3, 5};
    const int64_t pass_count = kLayers * kPassRows * kHeads * kDim, ring_count = kLayers * kHeads * kRingRows * kDim;
    const int64_t open_count = kLayers * kHeads * kActiveRows * kDim;
    const std::vector<float> pass_k = rounded(random_values(1, pass_count), k_type),
                             pass_v = random_values(2, pass_count);
    std::vector<float> ring_k = rounded(random_values(3, ring_count), k_type), ring_v = random_values(4, ring_count);
    std::vector<float> active_k = rounded(random_values(5, open_count), k_type),
                       active_v = random_values(6, open_count);
    const DeviceArray pass_k_array = upload(pass_k, k_type), pass_v_array = upload(pass_v, v_type);
    const DeviceArray ring_k_array = upload(ring_k, k_type), ring_v_array = upload(ring_v, v_type);
    const DeviceArray active_k_array = upload(active_k, k_type), active_v_array = upload(active_v, v_type);
    const DeviceArray source_array = upload_raw(source);
    std::vector<void*> active_k_layers, active_v_layers;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int64_t offset = layer * kHeads * kActiveRows * kDim;
      active_k_layers.push_back(active_k_array.data() + offset * static_cast<int64_t>(dtype_bytes(k_type)));
      active_v_layers.push_back(active_v_array.data() + offset * static_cast<int64_t>(dtype_bytes(v_type)));
    }
    const DeviceArray k_layers = upload_raw(active_k_layers), v_layers = upload_raw(active_v_layers);
    commit_rows({pass_k_array.data(), pass_v_array.data(), source_array.as<int32_t>(), ring_k_array.data(),
                 ring_v_array.data(), k_layers.as<void*>(), v_layers.as<void*>(), k_type, v_type, kLayers, kHeads, kDim,
                 kPassRows, kRingRows, kActiveRows, kCount, first, kActivePosition},
                stream());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t j = 0; j < kCount; ++j) {
        for (int64_t head = 0; head < kHeads; ++head) {
          for (int64_t i = 0; i < kDim; ++i) {
            const size_t from = index_of(((layer * kPassRows + source[index_of(j)]) * kHeads + head) * kDim + i);
            const size_t ring = index_of(((layer * kHeads + head) * kRingRows + (first + j) % kRingRows) * kDim + i);
            const size_t open =
                index_of(((layer * kHeads + head) * kActiveRows + first + j - kActivePosition) * kDim + i);
            ring_k[ring] = active_k[open] = pass_k[from];
            ring_v[ring] = active_v[open] = pass_v[from];
          }
        }
      }
    }
    EXPECT_EQ(download(ring_k_array, k_type), ring_k) << "from " << first;
    EXPECT_EQ(download(ring_v_array, v_type), ring_v) << "from " << first;
    EXPECT_EQ(download(active_k_array, k_type), active_k) << "from " << first;
    EXPECT_EQ(download(active_v_array, v_type), active_v) << "from " << first;
  }
}

TEST_P(CommitTest, ARingAloneNeedsNoSegment) {
  constexpr int64_t kHeads = 2, kDim = 8, kPassRows = 4, kRingRows = 6, kFirst = 1000, kCount = 3;
  const std::vector<int32_t> source = {3, 1, 0};
  const std::vector<float> pass_k = random_values(1, kPassRows * kHeads * kDim);
  const std::vector<float> pass_v = random_values(2, kPassRows * kHeads * kDim);
  std::vector<float> ring_k(kHeads * kRingRows * kDim, -1.0f), ring_v = ring_k;
  const DeviceArray pass_k_array = upload(pass_k, DType::kF32), pass_v_array = upload(pass_v, DType::kF32);
  const DeviceArray ring_k_array = upload(ring_k, DType::kF32), ring_v_array = upload(ring_v, DType::kF32);
  const DeviceArray source_array = upload_raw(source);
  commit_rows(
      {pass_k_array.data(), pass_v_array.data(), source_array.as<int32_t>(), ring_k_array.data(), ring_v_array.data(),
       nullptr, nullptr, DType::kF32, DType::kF32, 1, kHeads, kDim, kPassRows, kRingRows, 0, kCount, kFirst, 0},
      stream());
  for (int64_t j = 0; j < kCount; ++j) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < kDim; ++i) {
        const size_t from = index_of((source[index_of(j)] * kHeads + head) * kDim + i);
        const size_t to = index_of((head * kRingRows + (kFirst + j) % kRingRows) * kDim + i);
        ring_k[to] = pass_k[from];
        ring_v[to] = pass_v[from];
      }
    }
  }
  EXPECT_EQ(download(ring_k_array, DType::kF32), ring_k);
  EXPECT_EQ(download(ring_v_array, DType::kF32), ring_v);
}

// ---- Ring -----------------------------------------------------------------------------------------------------------

class RingTest : public testing_support::KernelTest {};
INSTANTIATE_KERNEL_TEST(RingTest);

// Rows of a segment, from one inside it, to their places in the ring, past its end too; what stands there beside them
// stays. A head_dim of 16 goes by whole vectors, one of 10 by elements.
TEST_P(RingTest, RowsGoToTheirPlaces) {
  constexpr int64_t kHeads = 3, kStrideRows = 32, kRingRows = 24;
  struct Case {
    int64_t dim, first, count, row;  // row: of the segment
  };
  const DType k_type = DType::kBF16, v_type = DType::kF32;
  for (const Case& c : {Case{16, 100, 5, 4}, Case{16, 110, 24, 8}, Case{10, 119, 2, 0}, Case{10, 96, 24, 3}}) {
    const int64_t rows = kHeads * kStrideRows * c.dim, ring = kHeads * kRingRows * c.dim;
    const std::vector<float> k = rounded(random_values(1, rows), k_type), v = random_values(2, rows);
    std::vector<float> ring_k = rounded(random_values(3, ring), k_type), ring_v = random_values(4, ring);
    const DeviceArray k_array = upload(k, k_type), v_array = upload(v, v_type);
    const DeviceArray ring_k_array = upload(ring_k, k_type), ring_v_array = upload(ring_v, v_type);
    const int64_t skipped = c.row * c.dim;
    fill_ring({k_array.data() + skipped * static_cast<int64_t>(dtype_bytes(k_type)),
               v_array.data() + skipped * static_cast<int64_t>(dtype_bytes(v_type)), ring_k_array.data(),
               ring_v_array.data(), k_type, v_type, kHeads, c.dim, kStrideRows, kRingRows, c.count, c.first},
              stream());
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < c.count * c.dim; ++i) {
        const int64_t row = c.row + i / c.dim, place = (c.first + i / c.dim) % kRingRows;
        const size_t from = index_of((head * kStrideRows + row) * c.dim + i % c.dim);
        const size_t to = index_of((head * kRingRows + place) * c.dim + i % c.dim);
        ring_k[to] = k[from];
        ring_v[to] = v[from];
      }
    }
    EXPECT_EQ(download(ring_k_array, k_type), ring_k) << "from " << c.first;
    EXPECT_EQ(download(ring_v_array, v_type), ring_v) << "from " << c.first;
  }
}

TEST_P(RingTest, RowsOfKAlone) {
  constexpr int64_t kHeads = 2, kStrideRows = 16, kRingRows = 64, kFirst = 60, kCount = 3;
  for (const int64_t dim : {1, 16}) {
    const std::vector<float> k = rounded(random_values(1, kHeads * kStrideRows * dim), DType::kBF16);
    std::vector<float> ring = rounded(random_values(2, kHeads * kRingRows * dim), DType::kBF16);
    const DeviceArray k_array = upload(k, DType::kBF16), ring_array = upload(ring, DType::kBF16);
    fill_ring({k_array.data(), nullptr, ring_array.data(), nullptr, DType::kBF16, DType::kBF16, kHeads, dim,
               kStrideRows, kRingRows, kCount, kFirst},
              stream());
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < kCount * dim; ++i) {
        ring[index_of((head * kRingRows + kFirst) * dim + i)] = k[index_of(head * kStrideRows * dim + i)];
      }
    }
    EXPECT_EQ(download(ring_array, DType::kBF16), ring) << dim;
  }
}

// ---- Placed rows ----------------------------------------------------------------------------------------------------

class PlaceTest : public testing_support::KernelTest {};
INSTANTIATE_KERNEL_TEST(PlaceTest);

// K as RoPE with a factor has made it at a row's position becomes what RoPE makes of it at its new position. V and the
// room behind the placed rows stay as they are.
TEST_P(PlaceTest, RowsAreTurnedToTheirNewPositions) {
  constexpr int64_t kLayers = 2, kHeads = 3, kRing = 512, kSinks = 4, kChunkRows = 16, kEnd = 448, kFree = 5;
  const std::vector<int32_t> chosen = {1, 2, 9, 25};
  const int64_t rows = kSinks + static_cast<int64_t>(chosen.size()) * kChunkRows, out_rows = rows + kFree;
  for (const int64_t dim : {64, 10}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const int64_t half = dim / 2, planes = kLayers * kHeads;
      std::vector<float> table;
      for (int64_t row = 0; row < kRing; ++row) {
        for (const bool sine : {false, true}) {
          for (int64_t i = 0; i < half; ++i) {
            const double angle =
                static_cast<double>(row) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
            table.push_back(static_cast<float>(1.5 * (sine ? std::sin(angle) : std::cos(angle))));
          }
        }
      }
      // Plane, row: as a product gives it, and turned to a position.
      const std::vector<float> raw = random_values(1, planes * kRing * dim), v = random_values(2, planes * kRing * dim);
      const auto turned = [&](int64_t plane, int64_t row, int64_t position) {
        std::vector<float> out(index_of(dim));
        const float* const x = raw.data() + (plane * kRing + row) * dim;
        const float* const t = table.data() + position * dim;
        for (int64_t i = 0; i < half; ++i) {
          out[index_of(i)] = x[i] * t[i] - x[half + i] * t[half + i];
          out[index_of(half + i)] = x[half + i] * t[i] + x[i] * t[half + i];
        }
        return out;
      };
      std::vector<float> ring_k, sink_k, sink_v;
      for (int64_t plane = 0; plane < planes; ++plane) {
        for (int64_t row = 0; row < kRing; ++row) {
          const std::vector<float> at = turned(plane, row, row);
          ring_k.insert(ring_k.end(), at.begin(), at.end());
          if (row < kSinks) sink_k.insert(sink_k.end(), at.begin(), at.end());
        }
        sink_v.insert(sink_v.end(), v.begin() + plane * kRing * dim, v.begin() + (plane * kRing + kSinks) * dim);
      }
      const std::vector<float> old(index_of(planes * out_rows * dim), 7.0f);
      const DeviceArray sink_k_array = upload(sink_k, type), sink_v_array = upload(sink_v, type);
      const DeviceArray ring_k_array = upload(ring_k, type), ring_v_array = upload(v, type);
      const DeviceArray k_out = upload(old, type), v_out = upload(old, type);
      const DeviceArray chosen_array = upload_raw(chosen), table_array = upload_raw(table);
      place_rows({.sink_k = sink_k_array.data(),
                  .sink_v = sink_v_array.data(),
                  .ring_k = ring_k_array.data(),
                  .ring_v = ring_v_array.data(),
                  .k_out = k_out.data(),
                  .v_out = v_out.data(),
                  .chosen = chosen_array.as<int32_t>(),
                  .cos_sin = table_array.as<float>(),
                  .k_type = type,
                  .v_type = type,
                  .layers = kLayers,
                  .kv_heads = kHeads,
                  .head_dim = dim,
                  .ring_rows = kRing,
                  .out_rows = out_rows,
                  .table_rows = kRing,
                  .sinks = kSinks,
                  .keep = static_cast<int64_t>(chosen.size()),
                  .chunk_rows = kChunkRows,
                  .end = kEnd},
                 stream());
      const std::vector<float> got_k = download(k_out, type), got_v = download(v_out, type),
                               v_stored = rounded(v, type);
      for (int64_t plane = 0; plane < planes; ++plane) {
        for (int64_t i = 0; i < out_rows; ++i) {
          const int64_t in_chunks = i - kSinks, to = (plane * out_rows + i) * dim;
          if (i >= rows) {
            for (int64_t j = 0; j < dim; ++j) ASSERT_EQ(got_k[index_of(to + j)], 7.0f) << i;
            continue;
          }
          const int64_t row =
              in_chunks < 0 ? i : chosen[index_of(in_chunks / kChunkRows)] * kChunkRows + in_chunks % kChunkRows;
          const std::vector<float> expected = turned(plane, row, kEnd - rows + i);
          const float share = type == DType::kF32 ? 1e-5f : 0.008f;  // two roundings
          for (int64_t j = 0; j < dim; ++j) {
            const float size = std::hypot(expected[index_of(j)], expected[index_of((j + half) % dim)]);
            ASSERT_NEAR(got_k[index_of(to + j)], expected[index_of(j)], share * size) << "row " << row << " at " << i;
            ASSERT_EQ(got_v[index_of(to + j)], v_stored[index_of((plane * kRing + row) * dim + j)]);
          }
        }
      }
    }
  }
}

// ---- Keys of values -------------------------------------------------------------------------------------------------

class KeysTest : public testing_support::KernelTest {
 protected:
  static constexpr int64_t kHeads = 3, kPositions = 900;

  std::vector<float> table(int64_t dim) const {
    std::vector<float> cos_sin(static_cast<size_t>(kPositions * dim));
    for (int64_t p = 0; p < kPositions; ++p) {
      for (int64_t j = 0; j < dim / 2; ++j) {  // as of Gemma 4, half of the pairs pass
        const float angle = j < dim / 4 ? static_cast<float>(p) / static_cast<float>(1 + j) : 0.0f;
        cos_sin[index_of(p * dim + j)] = std::cos(angle);
        cos_sin[index_of(p * dim + dim / 2 + j)] = std::sin(angle);
      }
    }
    return cos_sin;
  }
};
INSTANTIATE_KERNEL_TEST(KeysTest);

// Two segments, one of them not full, in one call, and the rows of a pass at positions of their own. A row's bits
// depend on the row and its position alone.
TEST_P(KeysTest, AreValuesTimesTheWeightTurned) {
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t dim : {int64_t{32}, int64_t{10}, int64_t{512}}) {
      constexpr int64_t kStride = 24, kRows = 19, kFirst = 5, kPassRows = 7;
      const std::vector<float> weight = rounded(random_values(1, dim), type), cos_sin = table(dim);
      const std::vector<float> a = rounded(random_values(2, kHeads * kStride * dim), type),
                               b = rounded(random_values(3, kHeads * kStride * dim), type);
      const std::vector<float> old(a.size(), 7.0f);
      const DeviceArray a_array = upload(a, type), b_array = upload(b, type), weight_array = upload(weight, type);
      const DeviceArray a_keys = upload(old, type), b_keys = upload(old, type), table_array = upload_raw(cos_sin);
      MakeKeysParams params{};
      params.runs[0] = {a_array.data(), a_keys.data(), 512, kStride, dim, kStride * dim};
      params.runs[1] = {b_array.data(), b_keys.data(), 64, kRows, dim, kStride * dim};
      params.count = 2;
      params.weight = weight_array.data();
      params.cos_sin = table_array.as<float>();
      params.type = params.weight_type = type;
      params.kv_heads = kHeads;
      params.head_dim = dim;
      params.table_rows = kPositions;
      make_keys(params, stream());

      const std::vector<float> got_a = download(a_keys, type), got_b = download(b_keys, type);
      const auto expect_row = [&](const std::vector<float>& v, const std::vector<float>& k, int64_t from,
                                  int64_t position) {
        const int64_t half = dim / 2;
        for (int64_t j = 0; j < half; ++j) {
          const float x = v[index_of(from + j)] * weight[index_of(j)],
                      y = v[index_of(from + half + j)] * weight[index_of(half + j)];
          const float c = cos_sin[index_of(position * dim + j)], s = cos_sin[index_of(position * dim + half + j)];
          const float share = (type == DType::kF32 ? 1e-6f : type == DType::kF16 ? 5e-4f : 4e-3f) * std::hypot(x, y);
          ASSERT_NEAR(k[index_of(from + j)], x * c - y * s, share) << "position " << position;
          ASSERT_NEAR(k[index_of(from + half + j)], y * c + x * s, share) << "position " << position;
        }
      };
      for (int64_t head = 0; head < kHeads; ++head) {
        for (int64_t row = 0; row < kStride; ++row) {
          const int64_t from = (head * kStride + row) * dim;
          expect_row(a, got_a, from, 512 + row);
          if (row < kRows) {
            expect_row(b, got_b, from, 64 + row);
          } else {
            ASSERT_EQ(got_b[index_of(from)], 7.0f) << "row " << row;
          }
        }
      }

      // The same rows of `a`, in the layout of a pass, from its row kFirst on, backwards.
      std::vector<float> pass(static_cast<size_t>((kFirst + kPassRows) * kHeads * dim), 0.0f);
      std::vector<int32_t> positions;
      for (int64_t row = 0; row < kPassRows; ++row) {
        positions.push_back(static_cast<int32_t>(512 + kPassRows - 1 - row));
        for (int64_t head = 0; head < kHeads; ++head) {
          std::copy_n(a.begin() + (head * kStride + kPassRows - 1 - row) * dim, dim,
                      pass.begin() + ((kFirst + row) * kHeads + head) * dim);
        }
      }
      const DeviceArray pass_array = upload(pass, type),
                        pass_keys = upload(std::vector<float>(pass.size(), 7.0f), type);
      const DeviceArray positions_array = upload_raw(positions);
      const DeviceArray first_array = upload_raw(std::vector<int32_t>{static_cast<int32_t>(kFirst)});
      params.runs[0] = {pass_array.data(), pass_keys.data(), 0, kPassRows, kHeads * dim, dim};
      params.count = 1;
      params.positions = positions_array.as<int32_t>();
      params.first = first_array.as<int32_t>();
      make_keys(params, stream());
      const std::vector<float> got = download(pass_keys, type);
      for (int64_t i = 0; i < kFirst * kHeads * dim; ++i) ASSERT_EQ(got[index_of(i)], 7.0f) << i;
      for (int64_t row = 0; row < kPassRows; ++row) {
        for (int64_t i = 0; i < kHeads * dim; ++i) {
          const int64_t in_segment = (i / dim * kStride + kPassRows - 1 - row) * dim + i % dim;
          ASSERT_EQ(got[index_of((kFirst + row) * kHeads * dim + i)], got_a[index_of(in_segment)]) << "row " << row;
        }
      }
    }
  }
}

TEST_P(KeysTest, RefuseRowsBeyondTheTable) {
  const DeviceArray v = upload(std::vector<float>(64, 1.0f), DType::kF32),
                    k = upload(std::vector<float>(64, 1.0f), DType::kF32);
  const DeviceArray weight = upload(std::vector<float>(32, 1.0f), DType::kF32),
                    table = upload_raw(std::vector<float>(32));
  MakeKeysParams params{};
  params.runs[0] = {v.data(), k.data(), 0, 2, 32, 64};
  params.count = 1;
  params.weight = weight.data();
  params.cos_sin = table.as<float>();
  params.type = params.weight_type = DType::kF32;
  params.kv_heads = 1;
  params.head_dim = 32;
  params.table_rows = 1;
  EXPECT_DEATH(make_keys(params, stream()), "positions 0 \\+ 2 of a table of 1");
}

}  // namespace
}  // namespace headrace
