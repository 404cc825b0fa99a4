// Flash attention over int8 rows (kernels/rows/op.h) for few rows of q, where a block waits for memory. The warps of a
// block share its rows of q and divide the work on a tile of K and V: a warp computes the scores and the weights of a
// quarter of the keys (16, or 8 of a large head), and adds a quarter of the columns of V. So each value is widened once
// in a block, by the warp that multiplies it, in registers. Weights go from warp to warp through shared memory.
// cp.async copies tiles as they are stored, some tiles ahead. Device code, internal to kernels/attention.
//
// A row's bits are those of LowBitTile: its products, factors and weights are the same and are added in the same order.
// Lanes with the same number add the same weights there and here, where a warp's are one of LowBitTile's parts.
#pragma once

#include "kernels/attention/low_bit_tile.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// kDim: head_dim, or the next larger instantiation; columns beyond head_dim are zero. kHalves: groups of eight rows of
// q; the products have tiles of two, and nothing else is computed for the rows that the last tile has beyond them.
template <typename T, int kDim, int kHalves>
struct FewRowsTile {
  static constexpr int kMTiles = (kHalves + 1) / 2, kHalvesEach = kHalves == 1 ? 1 : 2;  // of a tile
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 8 * kHalves;
  static constexpr int kKeys = keys_in_tile(kDim), kSteps = kDim / 16;
  static constexpr int kWarpKeys = kKeys / kWarps, kNTiles = kWarpKeys / 8;
  static_assert(kNTiles == 1 || kNTiles == 2);                             // a step of the product with V has 16 keys
  static_assert((kHalves == 1 || kHalves % 2 == 0) && kHalves <= kWarps);  // warp i completes the sums of half i
  static constexpr int kRow = kSteps * 16, kPlane = kKeys * kRow, kStageBytes = 2 * kPlane;  // 16 bytes: a chunk
  static constexpr int kPieces = kSteps / kWarps;                                            // a warp's chunks of V
  using Factors = LowBitTile<T, kDim, 1, DType::kInt8>;

  static constexpr bool kQueriesInRegisters = kMTiles == 1;
  static constexpr int kStages = kMTiles == 1 ? 3 : 2;  // tiles of K and V that shared memory holds
  static constexpr int kStagesAt = kQueriesInRegisters ? 0 : kRows * kDim * 2;
  static constexpr int kWeightsAt = kStagesAt + kStages * kStageBytes;
  static constexpr int kSumsAt = kWeightsAt + kMTiles * kKeys / 16 * 512;  // of each thread's weights
  static constexpr int kTopsAt = kSumsAt + kHalves * kThreads * 4;         // a row's largest score of each warp's keys
  static constexpr int kMaximaAt = kTopsAt + kRows * 16;                   // twice: each tile reads one and writes one
  // What a row sees, positions [first, limit); what all see; the position of the first row to walk.
  static constexpr int kFirstsAt = kMaximaAt + 2 * kRows * 4, kLimitsAt = kFirstsAt + kRows * 4;
  static constexpr int kCommonAt = kLimitsAt + kRows * 4, kBeginAt = kCommonAt + 8, kSharedBytes = kBeginAt + 4;
  static_assert(kSharedBytes <= 99 * 1024);  // the limit of sm_86 and sm_89

  // For rows g and g + 8 of each m-tile, where g = lane / 4, as the products leave them.
  float o[kMTiles][2 * kPieces][4] = {};
  float l = 0.0f, keep_own;  // of half warp(): this lane's sum of weights; what it is to be multiplied by
  uint32_t q[kQueriesInRegisters ? kSteps : 1][4];
  uint32_t shared;
  int tiles;  // that walk() walks

  const AttentionShape* shape;  // in constant memory, as the segment is
  const KvSegment* segment;
  int rows;                       // of the segment, from the first one to walk on
  uint32_t values_at, scales_at;  // bytes from a plane's first to those of the first row to walk
  __half scale;                   // of the next tile; lane i has that of its warp's key i or value i - 16

  __device__ int dim() const { return static_cast<int>(shape->head_dim); }
  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int fragment_row(int tile, int half) { return tile * 16 + half * 8 + lane() / 4; }
  __device__ uint32_t first_of(int row) const { return shared + kFirstsAt + row * 4; }
  __device__ uint32_t limit_of(int row) const { return shared + kLimitsAt + row * 4; }
  __device__ uint32_t maximum_of(int turn, int row) const { return shared + kMaximaAt + (turn * kRows + row) * 4; }
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
    shared = shared_address(shared_memory);
    segment = &from;
    shape = &of;
    const int skip = min(max(seen - from.position, 0) / kKeys * kKeys, from.rows);
    rows = from.rows - skip;
    if (threadIdx.x == 0) store_word(shared + kBeginAt, from.position + skip);
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
    if (threadIdx.x == 0) {
      store_word(shared + kCommonAt, bounds.common_first);
      store_word(shared + kCommonAt + 4, bounds.common_limit);
    }
    for (int row = threadIdx.x; row < kRows; row += kThreads) {
      store_word(first_of(row), row_of(row).first);
      store_word(limit_of(row), row_of(row).limit);
      store_word(maximum_of(0, row), __float_as_int(-INFINITY));
    }
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
      float s[kMTiles][kNTiles][4];
      score(from, s);
      const float factor = take_scale(tile);
      apply(factor, s);
      if (at + kKeys > min(load_word(shared + kCommonAt + 4), end) || at < load_word(shared + kCommonAt)) {
        mask(at, end, s);
      }
      find_tops(s);
      __syncthreads();  // the maxima are there, and all threads have finished with the values of the tile before
      fetch(tile + kStages - 1);
      weigh(tile, factor, s);
      wait_copies<kStages - 2>();  // the next tile
      __syncthreads();             // the weights are there, and that tile
      add_sums();
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
    if (warp() >= kHalves) return;
    const float sum = quad_sum(l);
    const int row = fragment_row(warp() / 2, warp() % 2);
    if (lane() % 4 != 0 || row >= count) return;
    const int64_t state = state_of(row);
    const bool poisoned = load_word(first_of(row)) < 0;
    to.ml[2 * state] = __fmul_rn(__int_as_float(load_word(maximum_of(tiles % 2, row))), kLn2);
    to.ml[2 * state + 1] = poisoned ? __int_as_float(0x7fffffff) : sum;
  }

 private:
  __device__ int begin() const { return load_word(shared + kBeginAt); }
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
  __device__ void score(uint32_t from, float (&s)[kMTiles][kNTiles][4]) const {
#pragma unroll
    for (int i = 0; i < kMTiles * kNTiles * 4; ++i) s[i / (4 * kNTiles)][i / 4 % kNTiles][i % 4] = 0.0f;
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
  __device__ static void apply(float factors, float (&s)[kMTiles][kNTiles][4]) {
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

  __device__ void mask(int position, int end, float (&s)[kMTiles][kNTiles][4]) const {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int first = load_word(first_of(fragment_row(i / 2, i % 2)));
      const int limit = min(load_word(limit_of(fragment_row(i / 2, i % 2))), end);
#pragma unroll
      for (int j = 0; j < 2 * kNTiles; ++j) {
        const int key = position + warp() * kWarpKeys + j / 2 * 8 + lane() % 4 * 2 + j % 2;
        if (key < first || key >= limit) s[i / 2][j / 2][2 * (i % 2) + j % 2] = -INFINITY;
      }
    }
  }

  // Stores each row's largest score of the warp's keys.
  __device__ void find_tops(const float (&s)[kMTiles][kNTiles][4]) const {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int tile = i / 2, at = i % 2 * 2;
      float top = fmaxf(s[tile][0][at], s[tile][0][at + 1]);
      if constexpr (kNTiles == 2) top = fmaxf(top, fmaxf(s[tile][1][at], s[tile][1][at + 1]));
      top = quad_max(top);
      if (lane() % 4 == 0) {
        store_word(shared + kTopsAt + fragment_row(tile, i % 2) * 16 + warp() * 4, __float_as_int(top));
      }
    }
  }

  // Converts the warp's scores to weights, which it stores as fragments; o follows the new maximum.
  __device__ void weigh(int tile_index, float factors, float (&s)[kMTiles][kNTiles][4]) {
    float value_scale[2 * kNTiles];
#pragma unroll
    for (int i = 0; i < 2 * kNTiles; ++i) {
      value_scale[i] = __shfl_sync(~0u, factors, 16 + i / 2 * 8 + lane() % 4 * 2 + i % 2);
    }
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < kHalvesEach; ++half) {
        const int row = fragment_row(tile, half);
        const uint4 tops = load_words(shared + kTopsAt + row * 16);
        const float old = __int_as_float(load_word(maximum_of(tile_index % 2, row)));
        const float top = fmaxf(old, fmaxf(fmaxf(__uint_as_float(tops.x), __uint_as_float(tops.y)),
                                           fmaxf(__uint_as_float(tops.z), __uint_as_float(tops.w))));
        if (warp() == 0 && lane() % 4 == 0) store_word(maximum_of(1 - tile_index % 2, row), __float_as_int(top));
        // A row that has seen nothing has no maximum: -inf - -inf would be NaN.
        const float base = top == -INFINITY ? 0.0f : top;
        const float keep = exp2_fast(__fsub_rn(old, base));
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * kNTiles; ++i) {
          float& weight = s[tile][i / 2][2 * half + i % 2];
          weight = exp2_fast(__fsub_rn(weight, base));
          sum = __fadd_rn(sum, weight);
          weight = __fmul_rn(weight, value_scale[i]);
        }
        store_word(sum_of(2 * tile + half, warp()), __float_as_int(sum));
        if (warp() == 2 * tile + half) keep_own = keep;
#pragma unroll
        for (int n = 0; n < 2 * kPieces; ++n) {
          o[tile][n][2 * half] = __fmul_rn(o[tile][n][2 * half], keep);
          o[tile][n][2 * half + 1] = __fmul_rn(o[tile][n][2 * half + 1], keep);
        }
      }
      const auto packed = [&](const float(&w)[4], int half) {
        return half >= kHalvesEach ? 0 : pack(w[2 * half], w[2 * half + 1], T{});
      };
      if constexpr (kNTiles == 2) {
        store_words(weights(tile, warp()),
                    {packed(s[tile][0], 0), packed(s[tile][0], 1), packed(s[tile][1], 0), packed(s[tile][1], 1)});
      } else {
        store_words(weights(tile, warp() / 2) + warp() % 2 * 8, uint2{packed(s[tile][0], 0), packed(s[tile][0], 1)});
      }
    }
  }
  __device__ uint32_t weights(int tile, int step) const {
    return shared + kWeightsAt + (tile * (kKeys / 16) + step) * 512 + lane() * 16;
  }

  __device__ uint32_t sum_of(int half, int of_warp) const {
    return shared + kSumsAt + ((half * kWarps + of_warp) * 32 + lane()) * 4;
  }
  // Adds the warps' sums to those of the tiles before, in the order of the keys.
  __device__ void add_sums() {
    if (warp() >= kHalves) return;
    float sum = __int_as_float(load_word(sum_of(warp(), 0)));
#pragma unroll
    for (int i = 1; i < kWarps; ++i) sum = __fadd_rn(sum, __int_as_float(load_word(sum_of(warp(), i))));
    l = __fmaf_rn(l, keep_own, sum);
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
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          const uint4 packed = load_words(weights(tile, keys / 16 + sub));
          const uint32_t a[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
          for (int n = 0; n < 2 * kPieces; ++n) multiply(o[tile][n], a, b[n][0], b[n][1], T{});
        }
      }
    }
  }
};

}  // namespace headrace::kernels::cuda
