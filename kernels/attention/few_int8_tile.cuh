// Flash attention over int8 rows (kernels/rows/op.h) for few rows of q (few_rows.cuh). Each value is widened once in a
// block, by the warp that multiplies it, in registers. cp.async copies tiles as they are stored, some tiles ahead.
// Device code, internal to kernels/attention.
#pragma once

#include "kernels/attention/few_rows.cuh"
#include "kernels/attention/low_bit_tile.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// The memory of FewInt8Tile that comes before FewRows': q, if it is not in registers, and tiles of K and V.
template <int kDim, int kHalves>
struct FewInt8Memory {
  static constexpr bool kQueriesInRegisters = kHalves <= 2;
  static constexpr int kRow = kDim, kPlane = keys_in_tile(kDim) * kRow, kStageBytes = 2 * kPlane;
  static constexpr int kStages = kQueriesInRegisters ? 3 : 2;  // tiles of K and V that shared memory holds
  static constexpr int kStagesAt = kQueriesInRegisters ? 0 : 8 * kHalves * kDim * 2;
  static constexpr int kBytes = kStagesAt + kStages * kStageBytes;
};

template <typename T, int kDim, int kHalves>
struct FewInt8Tile : FewInt8Memory<kDim, kHalves>, FewRows<T, kDim, kHalves, FewInt8Memory<kDim, kHalves>::kBytes> {
  using Memory = FewInt8Memory<kDim, kHalves>;
  using Base = FewRows<T, kDim, kHalves, Memory::kBytes>;
  using Base::begin, Base::dim, Base::first_of, Base::fragment_row, Base::kHalvesEach, Base::kKeys, Base::kMTiles;
  using Base::kNTiles, Base::kPieces, Base::kRows, Base::kSteps, Base::kThreads, Base::kWarpKeys, Base::lane;
  using Base::limit_of, Base::o, Base::rows, Base::segment, Base::shape, Base::shared, Base::tiles, Base::warp;
  using Memory::kPlane, Memory::kQueriesInRegisters, Memory::kRow, Memory::kStageBytes, Memory::kStages;
  using Memory::kStagesAt;
  using typename Base::Scores;
  using Factors = LowBitTile<T, kDim, 1, DType::kInt8>;

  uint32_t q[kQueriesInRegisters ? kSteps : 1][4];
  uint32_t values_at, scales_at;  // bytes from a plane's first to those of the first row to walk
  __half scale;                   // of the next tile; lane i has that of its warp's key i or value i - 16

  __device__ uint32_t stage(int tile) const { return shared + kStagesAt + tile % kStages * kStageBytes; }
  // Of a tile: side 0 for K, 1 for V. Chunks are permuted by the row's number, so that ldmatrix reads 8 rows from
  // different banks.
  __device__ static uint32_t raw(int side, int row, int chunk) {
    constexpr int kAlike = kSteps < 8 ? 8 / kSteps : 1, kOrders = kSteps < 8 ? kSteps : 8;
    return side * kPlane + row * kRow + ((chunk ^ (row / kAlike % kOrders)) << 4);
  }
  __device__ uint32_t query(int row, int chunk) const { return shared + row * (kDim * 2) + ((chunk ^ (row & 7)) << 4); }

  // Begins to copy the segment's first tiles, from the one that holds position `seen` on. REQUIRES: a plane has less
  // than 4 GiB.
  __device__ void open(const void* shared_memory, const AttentionShape& of, const KvSegment& from, int kv_head,
                       int seen) {
    const int skip = Base::rows_before(from, seen);
    Base::open_segment(shared_memory, of, from, skip);
    const uint32_t first = kv_head * from.stride_rows + from.first_row + skip;
    const uint32_t all = static_cast<int>(of.kv_heads) * from.stride_rows;
    values_at = first * dim();
    scales_at = all * dim() + first * 2;
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
    scale = fetch_scale(0);
  }

  // row_of(row) returns a row's q and bounds; missing rows of the block repeat the last one. aligned: whether every row
  // of q is.
  template <typename RowOf>
  __device__ void start(bool aligned, const TileBounds& bounds, const RowOf& row_of) {
    Base::start_rows(bounds, row_of);
    if constexpr (kQueriesInRegisters) {
      load_fragments<kHalves>(row_of(fragment_row(0, 0)).q, row_of(fragment_row(0, kHalves - 1)).q, dim(), aligned, q);
    } else {
      store_fours<kDim, kRows, kThreads>(dim(), aligned, row_of, [&](int row, int chunk) { return query(row, chunk); });
    }
  }

  // Processes the segment's rows below position `limit`.
  __device__ void walk(int limit) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the first tile and what was stored
    const int end = min(begin() + rows, limit);
    tiles = max(end - begin() + kKeys - 1, 0) / kKeys;
    for (int tile = 0; tile < tiles; ++tile) {
      const uint32_t from = stage(tile);
      const int at = begin() + tile * kKeys;
      Scores s;
      score(from, s);
      const float factor = take_scale(tile);
      apply(factor, s);
      if (Base::is_partial(at, end)) Base::mask(at, end, s);
      Base::find_tops(s);
      __syncthreads();  // the maxima are there, and all threads have finished with the values of the tile before
      fetch(tile + kStages - 1);
      weigh(tile, factor, s);
      wait_copies<kStages - 2>();  // the next tile
      __syncthreads();             // the weights are there, and that tile
      Base::add_sums();
      add(from);
    }
    wait_copies<0>();
  }

  // Stores the states of rows [0, count) of the block; state_of(row) is a row's index in `to`.
  template <typename StateOf>
  __device__ void store(int count, const AttentionState& to, const StateOf& state_of) const {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int tile = i / 2, half = i % 2, row = fragment_row(tile, half);
      if (row >= count) continue;
      const int64_t state = state_of(row);
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int d = (warp() * kPieces + p) * 16 + lane() % 4 * 4;
        if (d >= dim()) break;
        const float(&even)[4] = o[tile][2 * p], (&odd)[4] = o[tile][2 * p + 1];
        // + 0: a zero's sign must not depend on rows with weight 0.
        *reinterpret_cast<float4*>(to.o + state * dim() + d) = {value_of(even[2 * half]), value_of(odd[2 * half]),
                                                                value_of(even[2 * half + 1]),
                                                                value_of(odd[2 * half + 1])};
      }
    }
    Base::store_sums(count, 1.0f, to, state_of);
  }

 private:
  __device__ static float value_of(float sum) { return __fadd_rn(__fmul_rn(sum, Factors::kSumFactor), 0.0f); }

  // ---- Copies. All rows that the segment has are copied: values are finite, and scales are checked.

  __device__ const unsigned char* plane(int side) const {
    return static_cast<const unsigned char*>(side == 0 ? segment->k : segment->v);
  }
  __device__ void fetch(int tile) {
    constexpr int kRowsAtOnce = kThreads / kSteps;
    const int chunk = threadIdx.x % kSteps, first = threadIdx.x / kSteps;
    if (dim() == kDim && (tile + 1) * kKeys <= rows) {  // a thread's rows permute their chunks alike
      const uint32_t to = stage(tile) + raw(0, first, chunk), at = values_at + tile * (kKeys * kDim) + threadIdx.x * 16;
      copy_whole<0>(to, plane(0) + at);
      copy_whole<0>(to + kPlane, plane(1) + at);
      commit_copies();
      return;
    }
    const bool some = chunk * 16 < dim();
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const unsigned char* const from = plane(side);
#pragma unroll
      for (int i = 0; i < kKeys / kRowsAtOnce; ++i) {
        const int within = first + i * kRowsAtOnce, row = tile * kKeys + within;
        const bool there = some && row < rows;
        copy_async(stage(tile) + raw(side, within, chunk), there ? from + (values_at + row * dim() + chunk * 16) : from,
                   there ? 16 : 0);
      }
    }
    commit_copies();
  }
  template <int kI>
  __device__ static void copy_whole(uint32_t to, const unsigned char* from) {
    if constexpr (kI * kThreads * 16 < kPlane) {
      copy_at<kI * kThreads * 16, kI * kThreads * 16>(to, from);
      copy_whole<kI + 1>(to, from);
    }
  }
  __device__ __half fetch_scale(int tile) const {
    const int row = tile * kKeys + warp() * kWarpKeys + lane() % 16;
    if (row >= rows || lane() % 16 >= kWarpKeys) return __float2half_rn(0.0f);
    return *reinterpret_cast<const __half*>(plane(lane() / 16) + (scales_at + row * 2));
  }
  // This lane's factor of the tile; fetches the next tile's.
  __device__ float take_scale(int tile) {
    float value = __half2float(scale);
    if (lane() < 16) {
      value = __fmul_rn(value, __fmul_rn(shape->scale, kLog2E * Factors::kKeyFactor));
    } else if (isfinite(value)) {
      value = __fmul_rn(value, Factors::kValueFactor);
    } else {
      value = 0.0f;
      mark_rows(first_of(0), limit_of(0), kRows, begin() + tile * kKeys + warp() * kWarpKeys + lane() % 16);
    }
    scale = fetch_scale(tile + 1);
    return value;
  }

  // ---- A tile

  // s = q k^T for the warp's keys, unscaled.
  __device__ void score(uint32_t from, Scores& s) const {
    Base::clear(s);
    constexpr int kAtOnce = 4 / kNTiles;  // steps of a load, which has four times 8 keys
    const int row = warp() * kWarpKeys + lane() % kWarpKeys;
#pragma unroll
    for (int first = 0; first < kSteps; first += kAtOnce) {
      uint32_t words[4];  // of each step: keys 0 to 7, 8 to 15
      load_matrices(words, from + raw(0, row, first + lane() / kWarpKeys));
#pragma unroll
      for (int step = first; step < first + kAtOnce; ++step) {
        uint32_t b[2 * kNTiles];
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          const uint32_t word = words[step % kAtOnce * kNTiles + n];
          b[2 * n] = widen_pair<kEvenTwo>(word, T{});
          b[2 * n + 1] = widen_pair<kOddTwo>(word, T{});
        }
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          uint32_t a[4];
          if constexpr (kQueriesInRegisters) {
#pragma unroll
            for (int j = 0; j < 4; ++j) a[j] = q[step][j];
          } else {
            load_matrices(a, query(tile * 16 + lane() % 16, step * 2 + lane() / 16));
          }
#pragma unroll
          for (int n = 0; n < kNTiles; ++n) multiply(s[tile][n], a, b[2 * n], b[2 * n + 1], T{});
        }
      }
    }
  }

  // s *= the factors of its keys.
  __device__ static void apply(float factors, Scores& s) {
#pragma unroll
    for (int i = 0; i < 2 * kNTiles; ++i) {
      const float factor = __shfl_sync(~0u, factors, i / 2 * 8 + lane() % 4 * 2 + i % 2);
#pragma unroll
      for (int tile = 0; tile < kMTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < kHalvesEach; ++half) {
          float& score = s[tile][i / 2][i % 2 + 2 * half];
          score = __fmul_rn(score, factor);
        }
      }
    }
  }

  __device__ void weigh(int tile, float factors, Scores& s) {
    float value_scale[2 * kNTiles];
#pragma unroll
    for (int i = 0; i < 2 * kNTiles; ++i) {
      value_scale[i] = __shfl_sync(~0u, factors, 16 + i / 2 * 8 + lane() % 4 * 2 + i % 2);
    }
    Base::weigh(
        tile, 1.0f, [&](int i, float weight) { return __fmul_rn(weight, value_scale[i]); }, s);
  }

  // o += weights v for the warp's columns: an n-tile has the even or the odd ones of a piece.
  __device__ void add(uint32_t from) {
#pragma unroll
    for (int keys = 0; keys < kKeys; keys += 32) {
      uint32_t words[kPieces][4];  // keys 0 to 7, 8 to 15, 16 to 23, 24 to 31
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        load_transposed(words[p], from + raw(1, keys + lane(), warp() * kPieces + p));
      }
#pragma unroll
      for (int sub = 0; sub < 2; ++sub) {
        uint32_t b[2 * kPieces][2];
#pragma unroll
        for (int i = 0; i < 2 * kPieces; ++i) {
          const uint32_t word = words[i / 2][2 * sub + i % 2];
          b[i / 2 * 2][i % 2] = widen_pair<kEvenTwo>(word, T{});
          b[i / 2 * 2 + 1][i % 2] = widen_pair<kOddTwo>(word, T{});
        }
        Base::add_step(keys / 16 + sub, b);
      }
    }
  }
};

}  // namespace headrace::kernels::cuda
