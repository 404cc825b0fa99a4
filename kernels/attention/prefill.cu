// Prefill attention: causal, over a layer's K and V in segments.
#include "kernels/attention/bodies.h"
#include "kernels/attention/launch.cuh"
#include "kernels/attention/prefill_tile.cuh"
#include "kernels/attention/rows.cuh"

namespace headrace::kernels::cuda {

namespace {

// A block: queries at absolute multiples of its rows, of one head; the longest rows first.
template <typename Q, typename T, int kDim, bool kWhole>
__global__ void __launch_bounds__(PrefillTile<Q, T, kDim, kWhole>::kThreads, kDim <= 128 ? 2 : 1)
    prefill_tiles(const __grid_constant__ PrefillAttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  PrefillTile<Q, T, kDim, kWhole> tile(params, shared);
  tile.walk();
  const AttentionShape& shape = params.shape;
  for (int i = 0; i < 2 * PrefillTile<Q, T, kDim, kWhole>::kMTiles; ++i) {
    const int part = i / 2, half = i % 2, position = tile.position_of(part, half);
    float sum = tile.sum(part, half);
    if (params.sinks != nullptr) {
      sum = __fadd_rn(sum, exp2f(__fmaf_rn(params.sinks[tile.head], kLog2E, tile.shift[part][half])));
    }
    if (position < tile.first || position >= tile.end) continue;
    Q* out = static_cast<Q*>(params.out) + (int64_t{position - tile.first} * shape.heads + tile.head) * shape.head_dim;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int d = n * 8 + threadIdx.x % 4 * 2;
      if (!kWhole && d >= shape.head_dim) break;
      // + 0: a zero's sign must not depend on rows with weight 0.
      const uint32_t pair = pack(__fadd_rn(__fdiv_rn(tile.o[part][n][2 * half], sum), 0.0f),
                                 __fadd_rn(__fdiv_rn(tile.o[part][n][2 * half + 1], sum), 0.0f), Q{});
      *reinterpret_cast<uint32_t*>(out + d) = pair;
    }
  }
}

// A block: one query, some heads.
__global__ void __launch_bounds__(kRowsThreads, 4) prefill_rows(const __grid_constant__ PrefillAttentionParams params) {
  __shared__ AttentionRows::Shared shared;
  const AttentionShape& shape = params.shape;
  const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int position = static_cast<int>(params.first_position) + query, first = first_seen_of(shape, position);
  AttentionRows rows(shared, shape, params.q, query, blockIdx.y);
  for (int64_t n = 0; n < params.segment_count; ++n) {
    see_segment(params.segments[n], first, position + 1, &rows);
  }
  rows.finish();
  const int dim = static_cast<int>(shape.head_dim);
  for (int i = threadIdx.x; i < rows.heads * dim; i += kRowsThreads) {
    const int h = i / dim, d = i % dim;
    const SunkState state = with_sink(params.sinks, rows.head + h, shared.m[h], shared.l[h]);
    store_one(params.out, shape.type, (query * shape.heads + rows.head + h) * dim + d,
              __fadd_rn(__fdiv_rn(__fmul_rn(rows.result(h, d), state.keep), state.l), 0.0f));
  }
}

template <typename Q, typename T, int kDim, bool kWhole>
void launch_tiles(const PrefillAttentionParams& params, CudaStream& stream) {
  using Tile = PrefillTile<Q, T, kDim, kWhole>;
  const int64_t end = params.first_position + params.shape.queries;
  const int64_t blocks = ceil_div(end, Tile::kRows) - params.first_position / Tile::kRows;
  const dim3 grid(static_cast<unsigned>(params.shape.heads), static_cast<unsigned>(blocks));
  launch(prefill_tiles<Q, T, kDim, kWhole>, "prefill_tiles", grid, Tile::kThreads, Tile::kSharedBytes, params, stream);
}

template <typename Q, typename T>
void launch_tiles(const PrefillAttentionParams& params, CudaStream& stream) {
  const int64_t dim = params.shape.head_dim;
  if (dim < 64) return launch_tiles<Q, T, 64, false>(params, stream);
  if (dim == 64) return launch_tiles<Q, T, 64, true>(params, stream);
  if (dim < 128) return launch_tiles<Q, T, 128, false>(params, stream);
  if (dim == 128) return launch_tiles<Q, T, 128, true>(params, stream);
  launch_tiles<Q, T, 256, false>(params, stream);  // with constant offsets registers are spilled
}

}  // namespace

void prefill_attention(const PrefillAttentionParams& params, Stream& stream) {
  const AttentionShape& shape = params.shape;
  CudaStream& on = cuda_stream(stream);
  if (has_wide_tiles(shape)) return wide_prefill(params, on);
  if (!has_tiles(shape)) {
    const dim3 grid(static_cast<unsigned>(shape.queries),
                    static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)));
    return launch(prefill_rows, "prefill_rows", grid, kRowsThreads, 0, params, on);
  }
  if (shape.k_type == DType::kBF16) return launch_tiles<__nv_bfloat16, __nv_bfloat16>(params, on);
  if (shape.type == DType::kBF16) return launch_tiles<__nv_bfloat16, __half>(params, on);
  launch_tiles<__half, __half>(params, on);
}

}  // namespace headrace::kernels::cuda
