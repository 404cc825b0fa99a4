// What the kernels share that compute one segment's states with tiles (tile.cuh, low_bit_tile.cuh, few_int8_tile.cuh).
// Device code, internal to kernels/attention.
#pragma once

#include "kernels/attention/rows.cuh"
#include "kernels/attention/tile.cuh"

namespace headrace::kernels::cuda {

// The same number, which the compiler takes for another: what depends on it is computed again, not kept in registers.
__device__ inline int opaque(int number) {
  int same;
  asm volatile("mov.s32 %0, %1;" : "=r"(same) : "r"(number));
  return same;
}

struct PrefixRow {
  const void* q;
  int first, limit;  // positions that it sees
  int64_t state;     // index of [queries, heads]
};

// A block's rows of q, which are the queries times the query heads of one KV head, so that a tile of K and V is read
// once for all of them. Segments run from the last, because those are the longer ones.
template <typename T, int kRows>
struct PrefixBlock {
  const PrefixAttentionParams& params;
  const int group, rows;        // query heads of a KV head; all rows
  const int kv_head, n, begin;  // n: the segment; begin: the block's first row

  __device__ explicit PrefixBlock(const PrefixAttentionParams& of)
      : params(of),
        group(opaque(static_cast<int>(of.shape.heads)) / static_cast<int>(of.shape.kv_heads)),
        rows(static_cast<int>(of.shape.queries) * group),
        kv_head(blockIdx.y),
        n(static_cast<int>(gridDim.z - 1 - blockIdx.z)),
        begin(blockIdx.x * kRows) {}

  __device__ PrefixRow row_of(int row) const {
    const AttentionShape& shape = params.shape;
    const int packed = min(begin + row, rows - 1), query = packed / group, head = kv_head * group + packed % group;
    const int position = params.positions[query];
    return {static_cast<const T*>(params.q) + query * shape.q_stride + head * shape.head_dim,
            first_seen_of(shape, position), tail_begin_of(position), query * shape.heads + head};
  }
  __device__ TileBounds bounds() const {
    TileBounds of = {INT32_MAX, 0, INT32_MAX, 0};
    const int last_query = min(begin + kRows - 1, rows - 1) / group;
    for (int query = begin / group + threadIdx.x % 32; query <= last_query; query += 32) {
      const int position = params.positions[query], first = first_seen_of(params.shape, position);
      const int limit = tail_begin_of(position);
      of = {min(of.first, first), max(of.common_first, first), min(of.common_limit, limit), max(of.limit, limit)};
    }
    return {__reduce_min_sync(~0u, of.first), __reduce_max_sync(~0u, of.common_first),
            __reduce_min_sync(~0u, of.common_limit), __reduce_max_sync(~0u, of.limit)};
  }
  __device__ int64_t state_of(int row) const {
    return n * params.shape.queries * params.shape.heads + row_of(row).state;
  }
};

// A KV head's rows of q in a call.
inline int64_t prefix_rows_of(const AttentionShape& shape) { return shape.queries * (shape.heads / shape.kv_heads); }

template <typename Tile>
dim3 prefix_grid(const PrefixAttentionParams& params) {
  const AttentionShape& shape = params.shape;
  const int64_t blocks = ceil_div(prefix_rows_of(shape), Tile::kRows);
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(shape.kv_heads),
              static_cast<unsigned>(params.segment_count));
}

}  // namespace headrace::kernels::cuda
