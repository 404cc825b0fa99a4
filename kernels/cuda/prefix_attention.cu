// Attention over the prefix while decoding (FlashDecoding; DESIGN section 8): one state a segment, then all of them
// folded into the queries' states from left to right.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace headrace::kernels::cuda {

namespace {

struct PrefixRow {
  const void* q;
  int limit;
  int64_t state;  // index of [queries, heads]
};

// A block: rows of q, which are the queries times the query heads of one KV head, so that a tile of K and V is read
// once for all of them. Segments run from the last, as those are the longer ones.
template <typename T, int kDim, int kMTiles>
__global__ void __launch_bounds__(128, kMTiles == 1 ? 2 : 1)
    prefix_tiles(const __grid_constant__ PrefixAttentionParams params) {
  using Tile = AttentionTile<T, kDim, kMTiles>;
  extern __shared__ __align__(128) unsigned char shared[];
  const AttentionShape& shape = params.shape;
  const int dim = static_cast<int>(shape.head_dim), group = static_cast<int>(shape.heads / shape.kv_heads);
  const int kv_head = blockIdx.y, n = static_cast<int>(gridDim.z - 1 - blockIdx.z);
  const int rows = static_cast<int>(shape.queries) * group, begin = blockIdx.x * Tile::kRows;
  const auto row_of = [&](int row) {
    const int packed = min(begin + row, rows - 1), query = packed / group, head = kv_head * group + packed % group;
    return PrefixRow{static_cast<const T*>(params.q) + query * shape.q_stride + int64_t{head} * dim,
                     tail_begin_of(params.positions[query]), query * shape.heads + head};
  };
  int limit = 0;
  const int last_query = min(begin + Tile::kRows - 1, rows - 1) / group;
  for (int query = begin / group + threadIdx.x % 32; query <= last_query; query += 32) {
    limit = max(limit, tail_begin_of(params.positions[query]));
  }
  limit = __reduce_max_sync(~0u, limit);
  Tile tile;
  tile.start(shared, shape.scale, dim, queries_aligned(shape, params.q), row_of);
  tile.walk(TileCursor<T, Span::kSegment>(params.segments + n, 1, kv_head, dim, limit), begin + Tile::warp_row() < rows,
            row_of);
  tile.finish();

  for (int i = 0; i < 2 * kMTiles; ++i) {
    const int part = i / 2, half = i % 2, row = Tile::fragment_row(part, half);
    if (begin + row >= rows) continue;
    const int64_t index = n * shape.queries * shape.heads + row_of(row).state;
    const float m = tile.m[part][half];
    if (threadIdx.x % 4 == 0) {
      params.scratch.ml[2 * index] = __fmul_rn(__fmul_rn(m, tile.scale_log2), kLn2);
      params.scratch.ml[2 * index + 1] = tile.l[part][half];
    }
#pragma unroll
    for (int column = 0; column < kDim / 8; ++column) {
      const int d = column * 8 + threadIdx.x % 4 * 2;
      if (d >= dim) break;
      // + 0: the sign of a zero must not tell of rows that weighed nothing.
      *reinterpret_cast<float2*>(params.scratch.o + index * dim + d) = {
          __fadd_rn(tile.o[part][column][2 * half], 0.0f), __fadd_rn(tile.o[part][column][2 * half + 1], 0.0f)};
    }
  }
}

// A block: one query, some heads, one segment.
__global__ void __launch_bounds__(kRowsThreads) prefix_rows(const __grid_constant__ PrefixAttentionParams params) {
  __shared__ AttentionRows::Shared shared;
  const AttentionShape& shape = params.shape;
  const int query = blockIdx.x, n = blockIdx.z, dim = static_cast<int>(shape.head_dim);
  const KvSegment& segment = params.segments[n];
  AttentionRows rows(shared, shape, params.q, query, blockIdx.y);
  see_segment(segment, min(tail_begin_of(params.positions[query]) - segment.position, segment.rows), &rows);
  rows.finish();
  const int64_t index = (n * shape.queries + query) * shape.heads + rows.head;
  if (threadIdx.x < rows.heads) {
    params.scratch.ml[2 * (index + threadIdx.x)] = shared.m[threadIdx.x];
    params.scratch.ml[2 * (index + threadIdx.x) + 1] = shared.l[threadIdx.x];
  }
  for (int i = threadIdx.x; i < rows.heads * dim; i += kRowsThreads) {
    params.scratch.o[index * dim + i] = rows.result(i / dim, i % dim);
  }
}

constexpr int kFoldThreads = 128, kFoldBatch = 16;

// A block: a query's head. Each thread folds two elements of o, and m and l, which are the same in each.
__global__ void __launch_bounds__(kFoldThreads) fold_prefix(const __grid_constant__ PrefixAttentionParams params) {
  const int64_t states = params.shape.queries * params.shape.heads, dim = params.shape.head_dim, to = blockIdx.x;
  const int d = 2 * threadIdx.x;
  const bool inside = d < dim;
  float2* const into = reinterpret_cast<float2*>(params.state.o + to * dim + d);
  float2 o = inside ? *into : float2{};
  float m = params.state.ml[2 * to], l = params.state.ml[2 * to + 1];
  const int count = static_cast<int>(params.segment_count);
  for (int first = 0; first < count; first += kFoldBatch) {
    float2 ml[kFoldBatch], part[kFoldBatch];  // all in flight before the first is used
#pragma unroll
    for (int i = 0; i < kFoldBatch; ++i) {
      const int64_t from = min(first + i, count - 1) * states + to;
      ml[i] = reinterpret_cast<const float2*>(params.scratch.ml)[from];
      part[i] = inside ? *reinterpret_cast<const float2*>(params.scratch.o + from * dim + d) : float2{};
    }
#pragma unroll
    for (int i = 0; i < kFoldBatch; ++i) {
      if (first + i >= count || ml[i].x == -INFINITY) continue;  // an empty state changes nothing
      const float top = fmaxf(m, ml[i].x);
      const float keep = weight_of(__fsub_rn(m, top)), add = weight_of(__fsub_rn(ml[i].x, top));
      o.x = __fmaf_rn(part[i].x, add, __fmul_rn(o.x, keep));
      o.y = __fmaf_rn(part[i].y, add, __fmul_rn(o.y, keep));
      l = __fmaf_rn(ml[i].y, add, __fmul_rn(l, keep));
      m = top;
    }
  }
  if (inside) *into = o;
  __syncthreads();  // all have read m and l
  if (threadIdx.x == 0) {
    params.state.ml[2 * to] = m;
    params.state.ml[2 * to + 1] = l;
  }
}

template <typename T, int kDim, int kMTiles>
void launch_tiles(const PrefixAttentionParams& params, CudaStream& stream) {
  using Tile = AttentionTile<T, kDim, kMTiles>;
  const AttentionShape& shape = params.shape;
  const int64_t blocks = ceil_div(shape.queries * (shape.heads / shape.kv_heads), Tile::kRows);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(shape.kv_heads),
                  static_cast<unsigned>(params.segment_count));
  launch(prefix_tiles<T, kDim, kMTiles>, "prefix_tiles", grid, Tile::kThreads, Tile::kSharedBytes, params, stream);
}

// Few rows take the smaller block. It does the same to each row.
template <typename T, int kDim>
void launch_tiles(const PrefixAttentionParams& params, CudaStream& stream) {
  const int64_t rows = params.shape.queries * (params.shape.heads / params.shape.kv_heads);
  if (rows <= AttentionTile<T, kDim, 1>::kRows) return launch_tiles<T, kDim, 1>(params, stream);
  launch_tiles<T, kDim, 2>(params, stream);
}

void segment_states(const PrefixAttentionParams& params, CudaStream& stream) {
  const AttentionShape& shape = params.shape;
  if (!has_tiles(shape)) {
    const dim3 grid(static_cast<unsigned>(shape.queries),
                    static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)),
                    static_cast<unsigned>(params.segment_count));
    return launch(prefix_rows, "prefix_rows", grid, kRowsThreads, 0, params, stream);
  }
  if (shape.type == DType::kBF16) {
    if (shape.head_dim <= 64) return launch_tiles<__nv_bfloat16, 64>(params, stream);
    return launch_tiles<__nv_bfloat16, 128>(params, stream);
  }
  if (shape.head_dim <= 64) return launch_tiles<__half, 64>(params, stream);
  launch_tiles<__half, 128>(params, stream);
}

}  // namespace

void prefix_attention(const PrefixAttentionParams& params, Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  segment_states(params, on);
  const dim3 states(static_cast<unsigned>(params.shape.queries * params.shape.heads));
  launch(fold_prefix, "fold_prefix", states, kFoldThreads, 0, params, on);
}

}  // namespace headrace::kernels::cuda
