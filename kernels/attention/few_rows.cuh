// What flash attention for few rows of q shares (few_low_bit.cuh, few_exact_tile.cuh). Device code, internal to
// kernels/attention. Warps share q and divide a tile of K and V: a warp computes the weights of a quarter of the keys
// (16, or 8 of a large head), which go through shared memory, and adds a quarter of the columns of V.
//
// A row's bits are those of the tile for many rows (LowBitTile, AttentionTile): its products, factors and weights are
// the same and are added in the same order. Lanes with the same number add the same weights there and here, where a
// warp's are one of that tile's parts.
#pragma once

#include "kernels/attention/tile.cuh"

namespace headrace::kernels::cuda {

// kDim: head_dim, or the next larger instantiation; columns beyond head_dim are zero. kHalves: groups of eight rows of
// q; the products have tiles of two, and nothing else is computed for the rows that the last tile has beyond them.
// kAt: where this part of the block's shared memory begins.
template <typename T, int kDim, int kHalves, int kAt>
struct FewRows {
  static constexpr int kMTiles = (kHalves + 1) / 2, kHalvesEach = kHalves == 1 ? 1 : 2;  // of a tile
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 8 * kHalves;
  static constexpr int kKeys = keys_in_tile(kDim), kSteps = kDim / 16;
  static constexpr int kWarpKeys = kKeys / kWarps, kNTiles = kWarpKeys / 8;
  static_assert(kNTiles == 1 || kNTiles == 2);                             // a step of the product with V has 16 keys
  static_assert((kHalves == 1 || kHalves % 2 == 0) && kHalves <= kWarps);  // warp i completes the sums of half i
  static constexpr int kPieces = kSteps / kWarps;                          // a warp's columns of V, 16 each

  static constexpr int kWeightsAt = kAt;
  static constexpr int kSumsAt = kWeightsAt + kMTiles * kKeys / 16 * 512;  // of each thread's weights
  static constexpr int kTopsAt = kSumsAt + kHalves * kThreads * 4;         // a row's largest score of each warp's keys
  static constexpr int kMaximaAt = kTopsAt + kRows * 16;                   // twice: each tile reads one and writes one
  // What a row sees, positions [first, limit); what all see; the position of the first row to walk.
  static constexpr int kFirstsAt = kMaximaAt + 2 * kRows * 4, kLimitsAt = kFirstsAt + kRows * 4;
  static constexpr int kCommonAt = kLimitsAt + kRows * 4, kBeginAt = kCommonAt + 8, kSharedBytes = kBeginAt + 4;
  static_assert(kSharedBytes <= 99 * 1024);  // the limit of sm_86 and sm_89

  using Scores = float[kMTiles][kNTiles][4];

  // For rows g and g + 8 of each m-tile, where g = lane / 4, as the products leave them.
  float o[kMTiles][2 * kPieces][4] = {};
  float l = 0.0f, keep_own;  // of half warp(): this lane's sum of weights; what it is to be multiplied by
  uint32_t shared;
  int tiles = 0;  // that walk() walks

  const AttentionShape* shape;  // in constant memory, as the segment is
  const KvSegment* segment;
  int rows;  // of the segment, from the first one to walk on

  __device__ int dim() const { return static_cast<int>(shape->head_dim); }
  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int fragment_row(int tile, int half) { return tile * 16 + half * 8 + lane() / 4; }
  __device__ uint32_t first_of(int row) const { return shared + kFirstsAt + row * 4; }
  __device__ uint32_t limit_of(int row) const { return shared + kLimitsAt + row * 4; }
  __device__ uint32_t maximum_of(int turn, int row) const { return shared + kMaximaAt + (turn * kRows + row) * 4; }
  __device__ int begin() const { return load_word(shared + kBeginAt); }

  // `skip`: rows before the first tile to walk.
  __device__ void open_segment(const void* shared_memory, const AttentionShape& of, const KvSegment& from, int skip) {
    shared = shared_address(shared_memory);
    segment = &from;
    shape = &of;
    rows = from.rows - skip;
    if (threadIdx.x == 0) store_word(shared + kBeginAt, from.position + skip);
  }
  __device__ static int rows_before(const KvSegment& from, int seen) {
    return min(max(seen - from.position, 0) / kKeys * kKeys, from.rows);
  }

  template <typename RowOf>
  __device__ void start_rows(const TileBounds& bounds, const RowOf& row_of) {
    if (threadIdx.x == 0) {
      store_word(shared + kCommonAt, bounds.common_first);
      store_word(shared + kCommonAt + 4, bounds.common_limit);
    }
    for (int row = threadIdx.x; row < kRows; row += kThreads) {
      store_word(first_of(row), row_of(row).first);
      store_word(limit_of(row), row_of(row).limit);
      store_word(maximum_of(0, row), __float_as_int(-INFINITY));
    }
  }

  // Whether some row does not see all of a tile.
  __device__ bool is_partial(int position, int end) const {
    return position + kKeys > min(load_word(shared + kCommonAt + 4), end) || position < load_word(shared + kCommonAt);
  }

  __device__ static void clear(Scores& s) {
#pragma unroll
    for (int i = 0; i < kMTiles * kNTiles * 4; ++i) s[i / (4 * kNTiles)][i / 4 % kNTiles][i % 4] = 0.0f;
  }

  __device__ void mask(int position, int end, Scores& s) const {
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
  __device__ void find_tops(const Scores& s) const {
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

  // Converts the warp's scores, times `scale`, to weights, which it stores as fragments; o follows the new maximum.
  // factor(i): of the lane's i-th key, which multiplies its weight, but not the sum of weights.
  template <typename Factor>
  __device__ void weigh(int tile_index, float scale, const Factor& factor, Scores& s) {
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
        const float base = top == -INFINITY ? 0.0f : __fmul_rn(top, scale);
        const float keep = exp2_fast(__fsub_rn(__fmul_rn(old, scale), base));
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * kNTiles; ++i) {
          float& weight = s[tile][i / 2][2 * half + i % 2];
          weight = exp2_fast(__fmaf_rn(weight, scale, -base));
          sum = __fadd_rn(sum, weight);
          weight = factor(i, weight);
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

  // o of all rows += their weights of the tile's keys [16 step, …) times b, the words of each of the warp's n-tiles.
  __device__ void add_step(int step, const uint32_t (&b)[2 * kPieces][2]) {
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
      const uint4 packed = load_words(weights(tile, step));
      const uint32_t a[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) multiply(o[tile][n], a, b[n][0], b[n][1], T{});
    }
  }

  // Stores m and l of the block's rows below `count`. scale: as weigh() had it.
  template <typename StateOf>
  __device__ void store_sums(int count, float scale, const AttentionState& to, const StateOf& state_of) const {
    if (warp() >= kHalves) return;
    const float sum = quad_sum(l);
    const int row = fragment_row(warp() / 2, warp() % 2);
    if (lane() % 4 != 0 || row >= count) return;
    const int64_t state = state_of(row);
    const bool poisoned = load_word(first_of(row)) < 0;
    const float maximum = __int_as_float(load_word(maximum_of(tiles % 2, row)));
    to.ml[2 * state] = __fmul_rn(__fmul_rn(maximum, scale), kLn2);
    to.ml[2 * state + 1] = poisoned ? __int_as_float(0x7fffffff) : sum;
  }
};

}  // namespace headrace::kernels::cuda
