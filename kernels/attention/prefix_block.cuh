// What the kernels share that compute one segment's states with tiles (tile.cuh, low_bit_tile.cuh). Device code,
// internal to kernels/cuda.
#pragma once

#include "kernels/attention/rows.cuh"
#include "kernels/attention/tile.cuh"

namespace headrace::kernels::cuda {

struct PrefixRow {
  const void* q;
  int limit;
  int64_t state;  // index of [queries, heads]
};

// A block: rows of q, which are the queries times the query heads of one KV head, so that a tile of K and V is read
// once for all of them. Segments run from the last, because those are the longer ones. walk(tile, segment, kv_head,
// limit, active, row_of) sees the segment's rows up to position `limit`.
template <typename T, typename Tile, typename Walk>
__device__ __forceinline__ void prefix_block(const PrefixAttentionParams& params, unsigned char* shared,
                                             const Walk& walk) {
  const AttentionShape& shape = params.shape;
  const int dim = static_cast<int>(shape.head_dim), group = static_cast<int>(shape.heads / shape.kv_heads);
  const int kv_head = blockIdx.y, n = static_cast<int>(gridDim.z - 1 - blockIdx.z);
  const int rows = static_cast<int>(shape.queries) * group, begin = blockIdx.x * Tile::kRows;
  const auto row_of = [&](int row) {
    const int packed = min(begin + row, rows - 1), query = packed / group, head = kv_head * group + packed % group;
    return PrefixRow{static_cast<const T*>(params.q) + query * shape.q_stride + int64_t{head} * dim,
                     tail_begin_of(params.positions[query]), query * shape.heads + head};
  };
  int limit = 0, common = INT32_MAX;
  const int last_query = min(begin + Tile::kRows - 1, rows - 1) / group;
  for (int query = begin / group + threadIdx.x % 32; query <= last_query; query += 32) {
    const int seen = tail_begin_of(params.positions[query]);
    limit = max(limit, seen);
    common = min(common, seen);
  }
  limit = __reduce_max_sync(~0u, limit);
  common = __reduce_min_sync(~0u, common);
  Tile tile;
  tile.start(shared, shape.scale, dim, queries_aligned(shape, params.q), common, row_of);
  walk(tile, params.segments[n], kv_head, limit, begin + Tile::warp_row() < rows, row_of);
  tile.finish();

  for (int i = 0; i < 2 * Tile::kMTilesOf; ++i) {
    const int part = i / 2, half = i % 2, row = Tile::fragment_row(part, half);
    if (begin + row >= rows) continue;
    const int64_t index = n * shape.queries * shape.heads + row_of(row).state;
    const float m = tile.m[part][half];
    if (threadIdx.x % 4 == 0) {
      params.scratch.ml[2 * index] = __fmul_rn(__fmul_rn(m, tile.scale_log2), kLn2);
      params.scratch.ml[2 * index + 1] = tile.l[part][half];
    }
#pragma unroll
    for (int column = 0; column < Tile::kChunks; ++column) {
      const int d = column * 8 + threadIdx.x % 4 * 2;
      if (d >= dim) break;
      // + 0: a zero's sign must not depend on rows with weight 0.
      *reinterpret_cast<float2*>(params.scratch.o + index * dim + d) = {
          __fadd_rn(tile.o[part][column][2 * half], 0.0f), __fadd_rn(tile.o[part][column][2 * half + 1], 0.0f)};
    }
  }
}

// Calls launch(a tile's m-tiles) for a call's rows: few rows use the smaller block, which computes each row
// identically.
template <typename Launch>
void launch_by_rows(const AttentionShape& shape, const Launch& launch) {
  const int64_t rows = shape.queries * (shape.heads / shape.kv_heads);
  if (rows <= AttentionTile<__half, 64, 1>::kRows) return launch(std::integral_constant<int, 1>());
  launch(std::integral_constant<int, 2>());
}

template <typename Tile>
dim3 prefix_grid(const PrefixAttentionParams& params) {
  const AttentionShape& shape = params.shape;
  const int64_t blocks = ceil_div(shape.queries * (shape.heads / shape.kv_heads), Tile::kRows);
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(shape.kv_heads),
              static_cast<unsigned>(params.segment_count));
}

}  // namespace headrace::kernels::cuda
