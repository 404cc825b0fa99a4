// Prefill attention: causal, over a layer's K and V in segments.
#include "kernels/attention/bodies.h"
#include "kernels/attention/launch.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/attention/tile.cuh"

namespace headrace::kernels::cuda {

namespace {

struct PrefillRow {
  const void* q;
  int limit;
};

// A block: queries at absolute multiples of its rows, of one head; the longest rows first.
template <typename T, int kDim>
__global__ void __launch_bounds__(128, 1) prefill_tiles(const __grid_constant__ PrefillAttentionParams params) {
  using Tile = AttentionTile<T, kDim, 2>;
  extern __shared__ __align__(128) unsigned char shared[];
  const AttentionShape& shape = params.shape;
  const int dim = static_cast<int>(shape.head_dim), head = blockIdx.x;
  const int first = static_cast<int>(params.first_position), end = first + static_cast<int>(shape.queries);
  const int block = first / Tile::kRows + static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int begin = block * Tile::kRows;
  const auto row_of = [&](int row) {
    const int position = max(first, min(begin + row, end - 1));
    return PrefillRow{static_cast<const T*>(params.q) + (position - first) * shape.q_stride + int64_t{head} * dim,
                      position + 1};
  };
  Tile tile;
  tile.start(shared, shape.scale, dim, queries_aligned(shape, params.q), max(first, begin) + 1, row_of);
  const int kv_head = head / static_cast<int>(shape.heads / shape.kv_heads);
  const int limit = min(begin + Tile::kRows, end);
  const int warp_begin = begin + Tile::warp_row();
  tile.walk(TileCursor<T, Span::kList>(params.segments, static_cast<int>(params.segment_count), kv_head, dim, limit),
            warp_begin < end && warp_begin + Tile::kWarpRows > first, row_of);
  tile.finish();

  for (int i = 0; i < 4; ++i) {
    const int part = i / 2, half = i % 2, position = begin + Tile::fragment_row(part, half);
    if (position < first || position >= end) continue;
    T* out = static_cast<T*>(params.out) + (int64_t{position - first} * shape.heads + head) * dim;
    const float sum = tile.l[part][half];
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int d = n * 8 + threadIdx.x % 4 * 2;
      if (d >= dim) break;
      // + 0: a zero's sign must not depend on rows with weight 0.
      const uint32_t pair = pack(__fadd_rn(__fdiv_rn(tile.o[part][n][2 * half], sum), 0.0f),
                                 __fadd_rn(__fdiv_rn(tile.o[part][n][2 * half + 1], sum), 0.0f), T{});
      *reinterpret_cast<uint32_t*>(out + d) = pair;
    }
  }
}

// A block: one query, some heads.
__global__ void __launch_bounds__(kRowsThreads, 4) prefill_rows(const __grid_constant__ PrefillAttentionParams params) {
  __shared__ AttentionRows::Shared shared;
  const AttentionShape& shape = params.shape;
  const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int limit = static_cast<int>(params.first_position) + query + 1;
  AttentionRows rows(shared, shape, params.q, query, blockIdx.y);
  for (int64_t n = 0; n < params.segment_count; ++n) {
    const KvSegment& segment = params.segments[n];
    see_segment(segment, min(limit - segment.position, segment.rows), &rows);
  }
  rows.finish();
  const int dim = static_cast<int>(shape.head_dim);
  for (int i = threadIdx.x; i < rows.heads * dim; i += kRowsThreads) {
    const int h = i / dim, d = i % dim;
    store_one(params.out, shape.type, (query * shape.heads + rows.head + h) * dim + d,
              __fadd_rn(__fdiv_rn(rows.result(h, d), shared.l[h]), 0.0f));
  }
}

template <typename T, int kDim>
void launch_tiles(const PrefillAttentionParams& params, CudaStream& stream) {
  using Tile = AttentionTile<T, kDim, 2>;
  const int64_t end = params.first_position + params.shape.queries;
  const int64_t blocks = ceil_div(end, Tile::kRows) - params.first_position / Tile::kRows;
  const dim3 grid(static_cast<unsigned>(params.shape.heads), static_cast<unsigned>(blocks));
  launch(prefill_tiles<T, kDim>, "prefill_tiles", grid, Tile::kThreads, Tile::kSharedBytes, params, stream);
}

}  // namespace

void prefill_attention(const PrefillAttentionParams& params, Stream& stream) {
  const AttentionShape& shape = params.shape;
  CudaStream& on = cuda_stream(stream);
  if (!has_tiles(shape)) {
    const dim3 grid(static_cast<unsigned>(shape.queries),
                    static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)));
    return launch(prefill_rows, "prefill_rows", grid, kRowsThreads, 0, params, on);
  }
  if (shape.type == DType::kBF16) {
    if (shape.head_dim <= 64) return launch_tiles<__nv_bfloat16, 64>(params, on);
    return launch_tiles<__nv_bfloat16, 128>(params, on);
  }
  if (shape.head_dim <= 64) return launch_tiles<__half, 64>(params, on);
  return launch_tiles<__half, 128>(params, on);
}

}  // namespace headrace::kernels::cuda
