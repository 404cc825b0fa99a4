// The tile that holds a query, in the computation's type: the state that the tiles in 8 bits are folded into. On tensor
// cores where kernels/attention has them for the shape, else by a block a query. Device code, internal to the folder.
#pragma once

#include "kernels/attention/tile.cuh"
#include "kernels/int8_attention/rows.cuh"
#include "kernels/int8_attention/workspace.cuh"

namespace headrace::kernels::cuda {

struct OwnRow {
  const void* q;
  int first, limit;  // positions that it sees; those before the tile are no matter
};

// With a large head, q stays in shared memory.
template <typename Q, typename T, int kDim>
using OwnTile = AttentionTile<T, kDim, 1, 2, 1, Q, 4, kDim <= 128>;

// A block: the queries of one tile of 64 positions, of one head.
template <typename Q, typename T, int kDim>
__global__ void __launch_bounds__(128, 2) own_tile(const __grid_constant__ Int8AttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = OwnTile<Q, T, kDim>;
  static_assert(Tile::kRows == kKv8Tile);
  const AttentionShape& shape = params.shape;
  const int head = blockIdx.x, dim = static_cast<int>(shape.head_dim);
  const int kv_head = head / static_cast<int>(shape.heads / shape.kv_heads);
  const int first = static_cast<int>(params.first_position), end = first + static_cast<int>(shape.queries);
  const int own = (first / Tile::kRows + static_cast<int>(blockIdx.y)) * Tile::kRows;
  const auto position_of = [&](int row) { return max(first, min(own + row, end - 1)); };
  const auto row_of = [&](int row) {
    const int position = position_of(row);
    const int64_t at = int64_t{position - first} * shape.q_stride + int64_t{head} * dim;
    return OwnRow{static_cast<const Q*>(params.q) + at, 0, position + 1};
  };
  const TileBounds bounds = {own, 0, position_of(0) + 1, min(own + Tile::kRows, end)};
  Tile tile;
  tile.start(shared, shape.scale, dim, queries_aligned(shape, params.q), bounds, row_of);
  tile.walk({segment_at(params.segments, params.segment_count, own), kv_head, dim, bounds.first, bounds.limit}, true,
            row_of);
  tile.finish();
  const Kv8Workspace at = workspace_of(shape);
  for (int half = 0; half < 2; ++half) {
    const int position = own + Tile::fragment_row(0, half);
    if (position < first || position >= end) continue;
    const int64_t row = int64_t{position - first} * shape.heads + head;
    if (threadIdx.x % 4 == 0) {
      *own_ml(params, at, row) = {__fmul_rn(tile.m[0][half], tile.scale_of(0, half)), tile.l[0][half]};
    }
#pragma unroll
    for (int column = 0; column < Tile::kChunks; ++column) {
      const int d = column * 8 + threadIdx.x % 4 * 2;
      if (d >= dim) break;
      *reinterpret_cast<float2*>(own_o(params, at, row) + d) = {tile.o[0][column][2 * half],
                                                                tile.o[0][column][2 * half + 1]};
    }
  }
}

// A block: one query, some heads.
__global__ void __launch_bounds__(kRowsThreads) own_rows(const __grid_constant__ Int8AttentionParams params) {
  __shared__ AttentionRows::Shared shared;
  const AttentionShape& shape = params.shape;
  const int query = blockIdx.x, dim = static_cast<int>(shape.head_dim);
  const int position = static_cast<int>(params.first_position) + query, own = position / kPrefixTile * kPrefixTile;
  const KvSegment& segment = segment_at(params.segments, params.segment_count, own);
  AttentionRows rows(shared, shape, params.q, query, blockIdx.y);
  const int64_t base = row_index(segment, rows.kv_head, own) * dim;
  rows.see(position + 1 - own, [&](int i) {
    const int64_t index = base + int64_t{i} * dim;
    return RowPlace{at(segment.k, shape.k_type, index), at(segment.v, shape.v_type, index)};
  });
  rows.finish();
  const Kv8Workspace to = workspace_of(shape);
  const int64_t row = int64_t{query} * shape.heads + rows.head;
  if (threadIdx.x < rows.heads) {
    *own_ml(params, to, row + threadIdx.x) = {__fmul_rn(shared.m[threadIdx.x], kLog2E), shared.l[threadIdx.x]};
  }
  for (int i = threadIdx.x; i < rows.heads * dim; i += kRowsThreads) {
    own_o(params, to, row)[i] = rows.result(i / dim, i % dim);
  }
}

}  // namespace headrace::kernels::cuda
