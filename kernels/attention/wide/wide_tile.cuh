// Flash attention on tensor cores for heads of more than 256 elements, whose o of 16 rows would not fit the registers
// of a warp. The warps of a block share the rows of q, K and V in tiles of 32 rows. Of the scores, a warp computes the
// products of a quarter of the columns, for 32 rows of q, or for 16 if the block has no more. Then it adds the quarters
// of its rows' scores of 8 keys, which it gets through shared memory, and makes weights of them. Of o, it has some
// columns of all rows. mma.sync m16n8k16 with fp32 sums; weights are rounded to the element type for the product with
// V, their sum is not. cp.async copies K of a tile while V of the tile before is multiplied, and V while K is. Device
// code, internal to kernels/attention.
//
// No maximum is sought before the end: a row's weights are relative to a score that was the largest of a tile, and only
// a weight that is too large in that scale makes the block look for a new one.
//
// A row's bits depend only on the row and on what it sees, not on the size of the block. Unseen keys have weight
// exactly 0, and a tile without a seen key adds 0. Whether a weight is too large is decided by the row's own weights. A
// weight of 0 does not cancel a value that is not finite, so a tile that some row of the block sees in part is screened
// for such values first.
#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/attention/op.h"
#include "kernels/attention/query_cast.cuh"
#include "kernels/attention/tile.cuh"
#include "kernels/attention/wide/wide_memory.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// kGroups: of rows, each with kEach tiles of 16. Q: the type of q, which is converted to T. Columns beyond head_dim are
// zero. kHasTop: whether a row's largest score is wanted.
template <typename Q, typename T, int kGroups, int kEach, bool kHasTop>
struct WideHeadTile : WideMemory<kGroups, kEach> {
  using Memory = WideMemory<kGroups, kEach>;
  using Memory::at_step, Memory::factors_of, Memory::first_of, Memory::kChunks, Memory::kDim, Memory::kGroupRows;
  using Memory::kKeys, Memory::kMTiles, Memory::kNTiles, Memory::kQuarters, Memory::kRowBytes, Memory::kRows;
  using Memory::kScoreBytes, Memory::kSteps, Memory::kSumBytes, Memory::kThreads, Memory::limit_of, Memory::now;
  using Memory::place, Memory::put_factors, Memory::scores, Memory::shared, Memory::tell, Memory::told, Memory::told_of;
  using Memory::values, Memory::weights, Memory::word_of;
  using typename Memory::Place;
  static_assert(kKeys / 8 == kQuarters && kPrefixTile % kKeys == 0);
  static constexpr float kMaxWeight = 4096.0f;  // of 8 weights' sum; finite in f16

  // What the block reads: rows [begin, end) of segments in any memory, of KV head blockIdx.y; begin is a multiple of
  // kKeys.
  const AttentionShape& shape;
  const KvSegment* segment;  // that holds the last tile of keys that was copied, or one before it
  const int begin, end;
  const int common_first, common_limit;  // what all rows see of it

  // With g = lane / 4 and t = lane % 4: of rows g and g + 8 of all tiles of 16 rows, the warp's columns.
  float o[kMTiles][kNTiles][4] = {};
  // Of rows g and g + 8 of each of the group's tiles: the quarter's columns; the last tile's scores of the warp's keys
  // 2t and 2t + 1.
  uint32_t q[kSteps][kEach][4];
  float s[kEach][4];
  // Of the lane's own row of these, the one numbered t, the warp's keys: the sums of weights, all and the last tile's;
  // the largest score.
  float l = 0.0f, tile_l, top = -INFINITY;

  __device__ WideHeadTile(const AttentionShape& of, const KvSegment* segments, const TileBounds& bounds, int first_row,
                          int rows_end, const void* shared_memory)
      : Memory(shared_memory),
        shape(of),
        segment(segments),
        begin(first_row),
        end(rows_end),
        common_first(bounds.common_first),
        common_limit(min(bounds.common_limit, rows_end)) {}

  // row_of(row) returns a row's q and bounds; missing rows of the block repeat the last one.
  template <typename RowOf>
  __device__ void start(const RowOf& row_of) {
    for (int row = threadIdx.x; row < kRows; row += kThreads) {
      store_word(first_of(row), row_of(row).first);
      store_word(limit_of(row), row_of(row).limit);
      put_factors(row, __fmul_rn(shape.scale, kLog2E), FLT_MAX);
    }
    const Place at = now();
#pragma unroll
    for (int i = 0; i < 2 * kEach; ++i) {
      load_query(static_cast<const unsigned short*>(row_of(at.row(i / 2, i % 2)).q), i / 2, i % 2);
    }
    if constexpr (kCasts<Q, T>) cast_queries();
  }

  // Processes all tiles.
  __device__ void walk() {
    if (begin >= end) return;
    fetch_keys(begin);
#pragma unroll 1
    for (int position = begin; position < end; position += kKeys) {
      wait_copies<0>();
      __syncthreads();  // the keys are there, and all threads have finished with the values of the tile before
      fetch(segment->v, position, values());
      score();
      __syncthreads();  // the quarters' sums are there, and all threads have finished with the keys
      if (position + kKeys < end) fetch_keys(position + kKeys);
      commit_copies();
      const bool partial = position + kKeys > common_limit || position < common_first;
      add_quarters();
      if (partial) mask(position);
      if constexpr (kHasTop) top = fmaxf(top, largest_scores());
      weigh();
      wait_copies<1>();
      const bool large = __syncthreads_or(!(tile_l <= kMaxWeight));  // the weights and the values are there
      if (partial) screen_values<T, kKeys, kChunks, kThreads, 1>(values(), position, first_of(0), limit_of(0), kRows);
      if (large) raise();
      l = __fadd_rn(l, tile_l);
      add_values();
    }
    wait_copies<0>();
  }

  // The state of a row: m, if kHasTop, and l; o is to be multiplied by `factor` to fit them.
  struct Sums {
    float m, l, factor;
  };
  // Calls store(row, tile, half, sums) for this thread's rows of o.
  template <typename Store>
  __device__ void finish(const Store& store) {
    const Place at = now();
    tell(at, top, l);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      const int row = i / 2 * 16 + i % 2 * 8 + at.lane / 4;
      float most = -INFINITY, sum = 0.0f;
#pragma unroll
      for (int from = 0; from < kQuarters; ++from) {
        const float2 some = told(row, from);
        most = fmaxf(most, some.x);
        sum = __fadd_rn(sum, some.y);
      }
      if (load_word(first_of(row)) < 0) sum = __int_as_float(0x7fffffff);
      const float2 factors = factors_of(row);
      const float scaled = __fmul_rn(most, factors.x);
      // Nothing is seen, or NaN alone: there is no maximum.
      const float factor = !kHasTop ? 1.0f : most == -INFINITY ? 0.0f : exp2_fast(__fsub_rn(-scaled, factors.y));
      store(row, i / 2, i % 2, Sums{__fmul_rn(scaled, kLn2), __fmul_rn(sum, factor), factor});
    }
  }

 private:
  __device__ void load_query(const unsigned short* row, int tile, int half) {
    const Place at = now();
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int d = at.quarter * (kDim / kQuarters) + i * 8 + at.lane % 4 * 2;
      q[i / 2][tile][i % 2 * 2 + half] = d < shape.head_dim ? row[d] | uint32_t{row[d + 1]} << 16 : 0;
    }
  }
  __device__ void cast_queries() {
    const Place at = now();
#pragma unroll
    for (int i = 0; i < 2 * kEach; ++i) {
      int largest = 0;
#pragma unroll
      for (int j = 0; j < 2 * kSteps; ++j) largest = larger(largest, q[j / 2][i / 2][j % 2 * 2 + i % 2]);
      largest = largest_of_quad(largest);
      if (at.lane % 4 == 0) store_word(word_of(at.row(i / 2, i % 2), at.quarter), largest);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * kEach; ++i) {
      const int row = at.row(i / 2, i % 2);
      int largest = 0;
#pragma unroll
      for (int from = 0; from < kQuarters; ++from) largest = max(largest, load_word(word_of(row, from)));
      const CastFactors factors = cast_factors(largest);
      if (at.quarter == 0 && at.lane % 4 == 0) {
        put_factors(row, __fmul_rn(__fmul_rn(shape.scale, kLog2E), factors.down), FLT_MAX);
      }
#pragma unroll
      for (int j = 0; j < 2 * kSteps; ++j) {
        uint32_t& pair = q[j / 2][i / 2][j % 2 * 2 + i % 2];
        pair = cast_pair(pair, factors.up);
      }
    }
    __syncthreads();  // the words are read
  }
  // Starts the copies of a tile of a plane of the segment in use: one group. Rows from `end` on and chunks beyond
  // head_dim become zero.
  __device__ void fetch(const void* plane, int position, uint32_t to) const {
    constexpr int kRowsAtOnce = kThreads / kChunks;
    const int thread = thread_now(), chunk = thread % kChunks, first = thread / kChunks;
    const int dim = static_cast<int>(shape.head_dim);
    const int some = chunk * 8 < dim ? end - position : 0;
    const int64_t row_before = int64_t{blockIdx.y} * segment->stride_rows + position - segment->position;
    const T* const from = static_cast<const T*>(plane) + (row_before + first) * dim + chunk * 8;
#pragma unroll 2
    for (int i = 0; i < kKeys; i += kRowsAtOnce) {
      const bool exists = first + i < some;
      copy_async(to + place(first + i, chunk), exists ? from + i * dim : plane, exists ? 16 : 0);
    }
    commit_copies();
  }
  __device__ void fetch_keys(int position) {
    while (segment->position + segment->rows <= position) ++segment;
    fetch(segment->k, position, shared);
  }

  // Stores the quarter's products of the group's rows by all keys.
  __device__ void score() const {
    const Place at = now();
    const uint32_t k =
        shared + place(at.lane / 16 * 8 + at.lane % 8, at.quarter * (kChunks / kQuarters) + at.lane / 8 % 2);
    const uint32_t to = scores(at.group, 0) + at.quarter * kSumBytes + at.lane * 16;
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      float c[kEach][2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t b[4];  // keys 0 to 7: columns 0 to 7, 8 to 15; keys 8 to 15: the same
        load_matrices(b, at_step(k, step) + n * 16 * kRowBytes);
#pragma unroll
        for (int tile = 0; tile < kEach; ++tile) {
          multiply(c[tile][0], q[step][tile], b[0], b[1], T{});
          multiply(c[tile][1], q[step][tile], b[2], b[3], T{});
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kEach; ++i) {
        const float(&from)[4] = c[i / 2][i % 2];
        store_words(to + (n * 2 + i % 2) * kScoreBytes + i / 2 * 512,
                    uint4{__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]),
                          __float_as_uint(from[3])});
      }
    }
  }
  // s = the unscaled scores of the warp's keys.
  __device__ void add_quarters() {
    const Place at = now();
    const uint32_t sums = scores(at.group, at.quarter) + at.lane * 16;
#pragma unroll
    for (int tile = 0; tile < kEach; ++tile) {
#pragma unroll
      for (int from = 0; from < kQuarters; ++from) {
        const uint4 some = load_words(sums + from * kSumBytes + tile * 512);
        const uint32_t words[4] = {some.x, some.y, some.z, some.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float part = __uint_as_float(words[i]);
          s[tile][i] = from == 0 ? part : __fadd_rn(s[tile][i], part);
        }
      }
    }
    __syncwarp();  // the weights take the sums' place
  }
  __device__ void mask(int position) {
    const Place at = now();
#pragma unroll
    for (int i = 0; i < 2 * kEach; ++i) {
      const int row = at.row(i / 2, i % 2), key = position + at.quarter * 8 + at.lane % 4 * 2;
      const int first = load_word(first_of(row)), limit = min(load_word(limit_of(row)), end);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (key + j < first || key + j >= limit) s[i / 2][i % 2 * 2 + j] = -INFINITY;
      }
    }
  }
  // Of the lane's own row: combines the quad's values, of which a lane has one for each of its rows.
  template <typename Combine>
  __device__ static float of_own_row(const float (&values)[2 * kEach], const Combine& combine) {
    const auto of_pair = [&](float low, float high, int distance) {
      const bool second = (threadIdx.x & distance) != 0;
      return combine(second ? high : low, __shfl_xor_sync(~0u, second ? low : high, distance));
    };
    float some[kEach];
#pragma unroll
    for (int tile = 0; tile < kEach; ++tile) some[tile] = of_pair(values[2 * tile], values[2 * tile + 1], 1);
    return of_pair(some[0], some[kEach - 1], 2);
  }
  __device__ float largest_scores() const {
    float largest[2 * kEach];
#pragma unroll
    for (int i = 0; i < 2 * kEach; ++i) largest[i] = fmaxf(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
    return of_own_row(largest, [](float a, float b) { return fmaxf(a, b); });
  }
  // Stores the weights of the warp's keys, relative to the rows' shifts, and adds them up. Before the first raise() a
  // row's weights are infinite or, of unseen keys, 0.
  __device__ void weigh() {
    const Place at = now();
    float sums[2 * kEach];
#pragma unroll
    for (int tile = 0; tile < kEach; ++tile) {
      uint32_t packed[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 factors = factors_of(at.row(tile, half));
        const float low = exp2_fast(__fmaf_rn(s[tile][2 * half], factors.x, factors.y));
        const float high = exp2_fast(__fmaf_rn(s[tile][2 * half + 1], factors.x, factors.y));
        sums[2 * tile + half] = __fadd_rn(low, high);
        packed[half] = pack(low, high, T{});
      }
      store_words(weights(at.group * kEach + tile, at.quarter, at.lane), uint2{packed[0], packed[1]});
    }
    tile_l = of_own_row(sums, [](float a, float b) { return __fadd_rn(a, b); });
  }
  // Makes the tile's largest score the base of the rows that have a weight that is too large.
  __device__ void raise() {
    const Place at = now();
    tell(at, largest_scores(), tile_l <= kMaxWeight ? 0.0f : 1.0f);
    __syncthreads();
    const int own = at.own_row();
    const float2 factors = factors_of(own);
    float most = -INFINITY, to = factors.y, keep = 1.0f;
    bool large = false;
#pragma unroll
    for (int from = 0; from < kQuarters; ++from) {
      const float2 some = told(own, from);
      most = fmaxf(most, some.x);
      large |= some.y != 0.0f;
    }
    if (large) {
      // All scores NaN or -inf: these have no maximum, and -inf - -inf would be NaN.
      to = most == -INFINITY ? 0.0f : -__fmul_rn(most, factors.x);
      keep = exp2_fast(__fsub_rn(to, factors.y));
      l = __fmul_rn(l, keep);
    }
    __syncthreads();
    if (at.quarter == 0) {
      put_factors(own, factors.x, to);
      store_word(told_of(own), __float_as_int(keep));
    }
    __syncthreads();
    weigh();
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      const float kept = __int_as_float(load_word(told_of(i / 2 * 16 + i % 2 * 8 + at.lane / 4)));
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        float(&sums)[4] = o[i / 2][n];
        sums[i % 2 * 2] = __fmul_rn(sums[i % 2 * 2], kept);
        sums[i % 2 * 2 + 1] = __fmul_rn(sums[i % 2 * 2 + 1], kept);
      }
    }
    __syncthreads();
  }

  // o += weights v.
  __device__ void add_values() {
    const Place at = now();
    const uint32_t v = values() + place(at.lane % 16, at.warp * kNTiles + at.lane / 16);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t a[kMTiles][4];
#pragma unroll
      for (int i = 0; i < 2 * kMTiles; ++i) {
        const float2 some = load_floats(weights(i / 2, step * 2 + i % 2, at.lane));
        a[i / 2][i % 2 * 2] = __float_as_uint(some.x);
        a[i / 2][i % 2 * 2 + 1] = __float_as_uint(some.y);
      }
#pragma unroll
      for (int n = 0; n < kNTiles / 2; ++n) {
        uint32_t b[4];  // columns 0 to 7: keys 0 to 7, 8 to 15; columns 8 to 15: the same
        load_transposed(b, at_step(v, n) + step * 16 * kRowBytes);
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          multiply(o[tile][2 * n], a[tile], b[0], b[1], T{});
          multiply(o[tile][2 * n + 1], a[tile], b[2], b[3], T{});
        }
      }
    }
  }
};

}  // namespace headrace::kernels::cuda
