// Flash attention (Dao et al. 2022, algorithm 1) on tensor cores: a block of rows of q against K and V in tiles of 64
// rows, or 32 if a head has more than 128 elements, which cp.async loads one tile ahead. mma.sync m16n8k16 with fp32
// sums; weights are rounded to the element type for the product with V, their sum is not. Device code, internal to
// kernels/attention.
//
// A row's bits depend only on the row and on what it sees. Each row walks the tiles in order by itself; unseen keys
// have weight exactly 0; a tile without a seen key multiplies the state by 1 and adds 0, so a warp may skip a tile that
// none of its rows sees. A weight of 0 does not cancel a value that is not finite, so a tile that some row of the block
// sees in part is screened for such values first. Sums are written as intrinsics, so that all instantiations contract
// them alike.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/attention/op.h"
#include "kernels/attention/tile_cursor.cuh"
#include "kernels/attention/tile_queries.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// ---- A block of rows ------------------------------------------------------------------------------------------------

// What the rows of a block see: the least of their first positions, the position from which all see, and the same of
// their limits. A tile within the common ones needs no mask.
struct TileBounds {
  int first, common_first, common_limit, limit;
};

// Keys in a tile. With more, q, the scores and o of a large head would not fit the registers.
constexpr int keys_in_tile(int dim) { return dim <= 128 ? static_cast<int>(kPrefixTile) : 32; }

// A value at `position` is not finite: marks the block's rows that see it. first_of and limit_of are the addresses of
// the rows' words; a marked row's first position is negative. Seldom called.
__device__ inline void mark_rows(uint32_t first_of, uint32_t limit_of, int rows, int position) {
#pragma unroll 1
  for (int at = 0; at < rows * 4; at += 4) {
    if (load_word(first_of + at) <= position && position < load_word(limit_of + at)) store_word(first_of + at, -1);
  }
}

// Replaces values of a tile that are not finite by 0, their contribution to rows that do not see them, and marks rows
// that do. Returns whether there are some. Called by all threads once the values are loaded. kAtOnce: of a thread's
// chunks, which are in registers.
template <typename T, int kKeys, int kChunks, int kThreads, int kAtOnce = kKeys* kChunks / kThreads>
__device__ inline bool screen_values(uint32_t v, int position, uint32_t first_of, uint32_t limit_of, int rows) {
  constexpr int kTileChunks = kKeys * kChunks;
  bool found = false;
#pragma unroll kAtOnce
  for (int i = 0; i < kTileChunks / kThreads; ++i) {
    found |= not_finite<T>(load_words(v + (i * kThreads + threadIdx.x) * 16));
  }
  if (!__syncthreads_or(found)) return false;
#pragma unroll 1
  for (int i = threadIdx.x; i < kTileChunks; i += kThreads) {  // chunks are permuted only within their rows
    if (!not_finite<T>(load_words(v + i * 16))) continue;
    store_zeros(v + i * 16);
    mark_rows(first_of, limit_of, rows, position + i / kChunks);
  }
  __syncthreads();
  return true;
}

// For score() and add(): nothing to do beside a step of their product.
struct NothingBeside {
  __device__ void operator()(int) const {}
};

// kDim: head_dim, or the next larger instantiation; columns beyond head_dim are zero. kMTiles: tiles of 16 rows per
// warp. kStagesOf: tiles of K and V that shared memory holds; on an H200 a third was slower where it fits. kSums: a
// thread adds a tile's weights in as many parts, then the parts. Q: the type of q, which is converted to T.
template <typename T, int kDim, int kMTiles, int kStagesOf = 2, int kSums = 1, typename Q = T, int kWarpsOf = 4,
          bool kInRegisters = kMTiles == 1>
struct AttentionTile : TileQueries<T, kDim, kMTiles, Q, kWarpsOf, kInRegisters> {
  using Queries = TileQueries<T, kDim, kMTiles, Q, kWarpsOf, kInRegisters>;
  using Queries::fragment_row;
  using Queries::kChunks;
  using Queries::kQueriesInRegisters;
  using Queries::kRowBytes;
  using Queries::kRows;
  using Queries::kSteps;
  using Queries::kThreads;
  using Queries::place;
  using Queries::q;
  using Queries::scale_log2;
  using Queries::scale_of;
  using Queries::shared;
  using Queries::warp_row;
  static constexpr int kKeys = keys_in_tile(kDim);
  static constexpr int kStages = kStagesOf;
  static constexpr int kTileBytes = kKeys * kRowBytes;
  static constexpr int kTilesAt = Queries::kBytes;
  static constexpr int kFirstsAt = kTilesAt + kStages * 2 * kTileBytes;
  static constexpr int kLimitsAt = kFirstsAt + kRows * 4;
  static constexpr int kCommonAt = kLimitsAt + kRows * 4;
  static constexpr int kSharedBytes = kCommonAt + 8;
  static_assert(kSharedBytes <= 99 * 1024);  // the limit of sm_86 and sm_89
  static_assert(kPrefixTile % kKeys == 0 && kChunks % 8 == 0);

  // For rows g and g + 8 of each m-tile, where g = lane / 4.
  float o[kMTiles][kDim / 8][4] = {};
  float m[kMTiles][2], l[kMTiles][2] = {};  // m: of unscaled scores; l: of this thread's columns until finish()

  int most;  // the largest limit of the warp's rows

  // Shared-memory address of: tiles of K and V; a row's bounds, where it sees positions [first, limit); those that all
  // rows of the block see.
  __device__ uint32_t keys(int stage) const { return shared + kTilesAt + stage * 2 * kTileBytes; }
  __device__ uint32_t values(int stage) const { return keys(stage) + kTileBytes; }
  __device__ uint32_t first_of(int row) const { return shared + kFirstsAt + row * 4; }
  __device__ uint32_t limit_of(int row) const { return shared + kLimitsAt + row * 4; }
  __device__ uint32_t common_first() const { return shared + kCommonAt; }
  __device__ uint32_t common_limit() const { return shared + kCommonAt + 4; }

  // row_of(row) returns a row's q and bounds; missing rows of the block repeat the last one. queries_aligned: every row
  // of q begins at a multiple of 16 bytes.
  template <typename RowOf>
  __device__ void start(const void* shared_memory, float scale, int dim, bool queries_aligned, const TileBounds& bounds,
                        const RowOf& row_of) {
    start_rows(shared_memory, scale, bounds, row_of);
    if constexpr (!kQueriesInRegisters) {
      if (queries_aligned && !kCasts<Q, T>) {
        this->copy_queries(dim, row_of);
      } else {
        this->store_queries(dim, row_of);
      }
    }
  }
  // The same without q.
  template <typename RowOf>
  __device__ void start_rows(const void* shared_memory, float scale, const TileBounds& bounds, const RowOf& row_of) {
    shared = shared_address(shared_memory);
    scale_log2 = __fmul_rn(scale, kLog2E);
    most = 0;
    if (threadIdx.x == 0) {
      store_word(common_first(), bounds.common_first);
      store_word(common_limit(), bounds.common_limit);
    }
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      m[i / 2][i % 2] = -INFINITY;
      const int row = fragment_row(i / 2, i % 2), limit = row_of(row).limit;
      most = max(most, limit);
      if (threadIdx.x % 4 == 0) {
        store_word(first_of(row), row_of(row).first);
        store_word(limit_of(row), limit);
      }
    }
    most = __reduce_max_sync(~0u, most);
  }

  // Whether some row does not see all of a tile.
  __device__ bool is_partial(int position, int end) const {
    return position + kKeys > min(load_word(common_limit()), end) || position < load_word(common_first());
  }

  // Processes the tiles from `ahead` on. active: whether this warp has rows. Ends without copies in flight.
  template <typename RowOf>
  __device__ void walk(TileCursor<T, kKeys> ahead, bool active, const RowOf& row_of) {
    const int end = ahead.end;
    int position = ahead.position;
    if (!active) most = 0;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(ahead, i);
    if constexpr (kQueriesInRegisters) this->load_queries(ahead.dim, row_of);  // while the copies run
    int stage = 0, last = kStages - 1;
    for (; position < end; position += kKeys) {
      wait_copies<2 * (kStages - 1) - 1>();
      __syncthreads();  // the keys are loaded, and all threads have finished with the next stage to fill
      fetch(ahead, last);
      const bool partial = is_partial(position, end);
      if (partial) {  // before the scores occupy registers
        wait_copies<2 * (kStages - 1)>();
        __syncthreads();
        screen(values(stage), position);
      }
      const bool sees = position < most;
      float s[kMTiles][kKeys / 8][4];
      if (sees) {
        score(keys(stage), s);
        if (partial) mask(position, end, s);
        weigh(s);
      }
      wait_copies<2 * (kStages - 1)>();  // the values are loaded too
      __syncthreads();
      if (sees) add(values(stage), s);
      last = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_copies<0>();
  }

  // Completes the rows' sums.
  __device__ void finish() {
    for (int tile = 0; tile < kMTiles; ++tile) {
      for (int half = 0; half < 2; ++half) {
        l[tile][half] = quad_sum(l[tile][half]);
      }
    }
  }

 protected:
  // Two groups of copies, keys and values; both are empty after the last tile, so that groups can be counted.
  __device__ void fetch(TileCursor<T, kKeys>& from, int stage) {
    const bool some = !from.done();
    if (some) fetch_rows(from.k, from.end - from.position, from.dim, keys(stage));
    commit_copies();
    if (some) fetch_rows(from.v, from.end - from.position, from.dim, values(stage));
    commit_copies();
    from.advance();
  }
  // Rows that no query row sees, and chunks beyond head_dim, become zero.
  __device__ void fetch_rows(const T* rows, int count, int dim, uint32_t to) {
    constexpr int kRowsAtOnce = kThreads / kChunks;
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
    const int some = chunk * 8 < dim ? count : 0;
#pragma unroll
    for (int i = 0; i < kKeys / kRowsAtOnce; ++i) {
      const int row = first + i * kRowsAtOnce;
      const T* source = row < some ? rows + row * dim + chunk * 8 : rows;
      copy_async(to + place(row, chunk), source, row < some ? 16 : 0);
    }
  }

  // s = q k^T, unscaled. Calls beside(step) in each of kSteps steps.
  template <typename Beside = NothingBeside>
  __device__ void score(uint32_t k, float (&s)[kMTiles][kKeys / 8][4], const Beside& beside = {}) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[tile][n][i] = 0.0f;
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kMTiles][4];
#pragma unroll
      for (int tile = 0; tile < kMTiles; ++tile) {
        if constexpr (kQueriesInRegisters) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[tile][i] = q[step][i];
        } else {
          // matrices: rows 0 to 7 and 8 to 15 of the first 8 columns, then of the next 8
          load_matrices(a[tile], shared + place(warp_row() + tile * 16 + lane % 16, step * 2 + lane / 16));
        }
      }
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];  // keys 0 to 7: columns 0 to 7, 8 to 15; keys 8 to 15: the same
        load_matrices(b, k + place(n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          multiply(s[tile][2 * n], a[tile], b[0], b[1], T{});
          multiply(s[tile][2 * n + 1], a[tile], b[2], b[3], T{});
        }
      }
      beside(step);
    }
  }

  __device__ void mask(int position, int end, float (&s)[kMTiles][kKeys / 8][4]) {
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = load_word(first_of(fragment_row(tile, half)));
        const int limit = min(load_word(limit_of(fragment_row(tile, half))), end);
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = position + n * 8 + threadIdx.x % 4 * 2 + i;
            if (key < first || key >= limit) s[tile][n][2 * half + i] = -INFINITY;
          }
        }
      }
    }
  }

  // Converts scores to weights; o and l follow the new maximum.
  __device__ void weigh(float (&s)[kMTiles][kKeys / 8][4]) {
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = m[tile][half];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          top = fmaxf(top, fmaxf(s[tile][n][2 * half], s[tile][n][2 * half + 1]));
        }
        top = quad_max(top);
        const float scale = scale_of(tile, half);
        // A row that has seen nothing has no maximum: -inf - -inf would be NaN.
        const float base = top == -INFINITY ? 0.0f : __fmul_rn(top, scale);
        const float keep = exp2_fast(__fsub_rn(__fmul_rn(m[tile][half], scale), base));
        m[tile][half] = top;
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < kSums; ++part) {
          constexpr int kEach = kKeys / 8 / kSums;
          float of_part = 0.0f;
#pragma unroll
          for (int n = part * kEach; n < (part + 1) * kEach; ++n) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
              s[tile][n][i] = exp2_fast(__fmaf_rn(s[tile][n][i], scale, -base));
              of_part = __fadd_rn(of_part, s[tile][n][i]);
            }
          }
          sum = part == 0 ? of_part : __fadd_rn(sum, of_part);
        }
        l[tile][half] = __fmaf_rn(l[tile][half], keep, sum);
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          o[tile][n][2 * half] = __fmul_rn(o[tile][n][2 * half], keep);
          o[tile][n][2 * half + 1] = __fmul_rn(o[tile][n][2 * half + 1], keep);
        }
      }
    }
  }

  // Called by all threads once the tile's values are loaded. Rows that see one that is not finite get a NaN as sum of
  // weights.
  __device__ void screen(uint32_t v, int position) {
    if (screen_values<T, kKeys, kChunks, kThreads>(v, position, first_of(0), limit_of(0), kRows)) spoil_marked();
  }
  // Rows that were marked get a NaN as sum of weights.
  __device__ void spoil_marked() {
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      if (load_word(first_of(fragment_row(i / 2, i % 2))) < 0) l[i / 2][i % 2] = __int_as_float(0x7fffffff);
    }
  }

  // o += s v. Calls beside(step) in each of kKeys / 16 steps.
  template <typename Beside = NothingBeside>
  __device__ void add(uint32_t v, const float (&s)[kMTiles][kKeys / 8][4], const Beside& beside = {}) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t a[kMTiles][4];  // the c layout of one product is the a layout of the next
#pragma unroll
      for (int tile = 0; tile < kMTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&from)[4] = s[tile][2 * step + i / 2];
          a[tile][i] = pack(from[i % 2 * 2], from[i % 2 * 2 + 1], T{});
        }
      }
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        uint32_t b[4];  // columns 0 to 7: keys 0 to 7, 8 to 15; columns 8 to 15: the same
        load_transposed(b, v + place(step * 16 + lane % 16, n * 2 + lane / 16));
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          multiply(o[tile][2 * n], a[tile], b[0], b[1], T{});
          multiply(o[tile][2 * n + 1], a[tile], b[2], b[3], T{});
        }
      }
      beside(step);
    }
  }
};

// ---- Supported shapes ----------------------------------------------------------------------------------------------

// Other shapes use kernels/attention/rows.cuh. The shape decides, never the number of queries.
inline bool has_tiles(const AttentionShape& shape) {
  return has_tensor_rows(shape) && shape.head_dim % 8 == 0 && shape.head_dim <= 256 && shape.scale > 0;
}

// Larger heads, in kernels/attention/wide.
inline bool has_wide_tiles(const AttentionShape& shape) {
  return has_tensor_rows(shape) && shape.head_dim % 8 == 0 && shape.head_dim > 256 && shape.scale > 0;
}

inline __device__ bool queries_aligned(const AttentionShape& shape, const void* q) {
  return shape.q_stride % 8 == 0 && shape.head_dim % 8 == 0 && reinterpret_cast<uintptr_t>(q) % 16 == 0;
}

}  // namespace headrace::kernels::cuda
