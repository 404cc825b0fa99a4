// Flash attention over int8 rows for few rows of q (few_low_bit.cuh). Device code, internal to kernels/attention.
#pragma once

#include "kernels/attention/few_low_bit.cuh"

namespace headrace::kernels::cuda {

template <int kDim, int kHalves>
using FewInt8Memory = FewLowBitMemory<kDim, kHalves, kDim, 0, kHalves <= 2 ? 3 : 2, false>;

template <typename T, int kDim, int kHalves>
struct FewInt8Tile : FewLowBit<T, kDim, kHalves, FewInt8Memory<kDim, kHalves>> {
  using Rows = FewLowBit<T, kDim, kHalves, FewInt8Memory<kDim, kHalves>>;
  using Rows::begin, Rows::dim, Rows::first_of, Rows::kHalvesEach, Rows::kKeys, Rows::kMTiles, Rows::kNTiles;
  using Rows::kPieces, Rows::kPlane, Rows::kRows, Rows::kStages, Rows::kSteps, Rows::kThreads, Rows::kWarpKeys;
  using Rows::lane, Rows::limit_of, Rows::parameters_at, Rows::plane, Rows::raw, Rows::rows, Rows::shape, Rows::stage;
  using Rows::values_at, Rows::warp;
  using typename Rows::Scores;
  using Factors = LowBitTile<T, kDim, 1, DType::kInt8>;

  __half scale;   // of the next tile; lane i has that of its warp's key i or value i - 16
  float factors;  // of the tile: what scores and weights are multiplied by

  // Begins to copy the segment's first tiles, from the one that holds position `seen` on. REQUIRES: a plane has less
  // than 4 GiB.
  __device__ void open(const void* shared_memory, const AttentionShape& of, const KvSegment& from, int kv_head,
                       int seen) {
    Rows::open_rows(shared_memory, of, from, kv_head, seen, static_cast<int>(of.head_dim), 2);
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
    scale = fetch_scale(0);
  }

  // Processes the segment's rows below position `limit`.
  __device__ void walk(int limit) { Rows::walk_tiles(*this, limit); }

  // Stores the states of rows [0, count) of the block; state_of(row) is a row's index in `to`.
  template <typename StateOf>
  __device__ void store(int count, const AttentionState& to, const StateOf& state_of) const {
    Rows::store_rows(
        count, 1.0f, [](float sum) { return __fmul_rn(sum, Factors::kSumFactor); }, to, state_of);
  }

  // ---- For walk_tiles()

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
  // s = q k^T for the warp's keys, times the keys' factors.
  __device__ void score(int tile, uint32_t from, Scores& s) {
    Rows::clear(s);
    constexpr int kAtOnce = 4 / kNTiles;  // steps of a load, which has four times 8 keys
    const int row = warp() * kWarpKeys + lane() % kWarpKeys;
#pragma unroll(kDim > 128 && kHalves == 4 ? 1 : kSteps)
    for (int first = 0; first < kSteps; first += kAtOnce) {
      uint32_t words[4];  // of each step: keys 0 to 7, 8 to 15
      load_matrices(words, from + raw(0, row, first + lane() / kWarpKeys));
#pragma unroll
      for (int step = first; step < first + kAtOnce; ++step) {
        uint32_t b[kNTiles][2];
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          const uint32_t word = words[step % kAtOnce * kNTiles + n];
          b[n][0] = widen_pair<kEvenTwo>(word, T{});
          b[n][1] = widen_pair<kOddTwo>(word, T{});
        }
        Rows::multiply_step(step, b, s);
      }
    }
    factors = take_scale(tile);
    apply(s);
  }

  __device__ void weigh(int tile, Scores& s) {
    float value_scale[2 * kNTiles];
#pragma unroll
    for (int i = 0; i < 2 * kNTiles; ++i) {
      value_scale[i] = __shfl_sync(~0u, factors, 16 + i / 2 * 8 + lane() % 4 * 2 + i % 2);
    }
    Rows::weigh(
        tile, 1.0f, [&](int i, float weight) { return __fmul_rn(weight, value_scale[i]); }, s);
  }

  // o += weights v for the warp's columns: an n-tile has the even or the odd ones of a piece.
  __device__ void add(uint32_t from, int) {
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
        Rows::add_step(keys / 16 + sub, b);
      }
    }
  }

 private:
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
    return *reinterpret_cast<const __half*>(plane(lane() / 16) + (parameters_at + row * 2));
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

  // s *= the factors of its keys.
  __device__ void apply(Scores& s) const {
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
};

}  // namespace headrace::kernels::cuda
