// The queries of int8_attention() in 8 bits, and the states of their own tiles.
#include "kernels/attention/launch.cuh"
#include "kernels/int8_attention/instances.cuh"
#include "kernels/int8_attention/own_tile.cuh"
#include "kernels/int8_attention/prepare.cuh"

namespace headrace::kernels::cuda {

namespace {

// A warp: a row of q.
template <int kDim>
__global__ void __launch_bounds__(128) convert_queries(const __grid_constant__ Int8AttentionParams params) {
  const AttentionShape& shape = params.shape;
  const int64_t row = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (row >= shape.queries * shape.heads) return;
  const int lane = threadIdx.x % 32, dim = static_cast<int>(shape.head_dim);
  WarpRow<kDim> q;
  q.load(params.q, shape.type, row / shape.heads * shape.q_stride + row % shape.heads * dim, dim);
  const int64_t kv_head = row % shape.heads / (shape.heads / shape.kv_heads);
  WarpRow<kDim> centre;
  centre.load(params.centre, DType::kF32, kv_head * dim, dim);
  float product = 0.0f;
#pragma unroll
  for (int i = 0; i < WarpRow<kDim>::kEach; ++i) product = __fmaf_rn(q.v[i], centre.v[i], product);
  product = warp_sum(product);
  q.rotate(dim & -dim);
  const RowQuant quant = q.quant();
  const Kv8Workspace at = workspace_of(shape);
  uint8_t* const out = reinterpret_cast<uint8_t*>(params.workspace) + row * kDim;
  q.store(quant, [&](int d) { return out + d; });
  if (lane == 0) reinterpret_cast<float2*>(params.workspace + at.scales)[row] = {quant.scale, product};
}

template <typename Q, typename T, int kDim>
void launch_own(const Int8AttentionParams& params, CudaStream& stream) {
  using Tile = OwnTile<Q, T, kDim>;
  const int64_t end = params.first_position + params.shape.queries;
  const int64_t blocks = ceil_div(end, kKv8Tile) - params.first_position / kKv8Tile;
  launch(own_tile<Q, T, kDim>, "own_tile",
         dim3(static_cast<unsigned>(params.shape.heads), static_cast<unsigned>(blocks)), Tile::kThreads,
         Tile::kSharedBytes, params, stream);
}
template <typename Q, typename T>
void launch_own(const Int8AttentionParams& params, CudaStream& stream) {
  if (params.shape.head_dim <= 64) return launch_own<Q, T, 64>(params, stream);
  if (params.shape.head_dim <= 128) return launch_own<Q, T, 128>(params, stream);
  launch_own<Q, T, 256>(params, stream);
}
void own_tiles(const Int8AttentionParams& params, CudaStream& stream) {
  const AttentionShape& shape = params.shape;
  if (!has_tiles(shape)) {
    const dim3 grid(static_cast<unsigned>(shape.queries),
                    static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)));
    return launch(own_rows, "own_rows", grid, kRowsThreads, 0, params, stream);
  }
  if (shape.k_type == DType::kBF16) return launch_own<__nv_bfloat16, __nv_bfloat16>(params, stream);
  if (shape.type == DType::kBF16) return launch_own<__nv_bfloat16, __half>(params, stream);
  launch_own<__half, __half>(params, stream);
}

}  // namespace

void prepare_queries(const Int8AttentionParams& params, CudaStream& stream) {
  const AttentionShape& shape = params.shape;
  own_tiles(params, stream);
  const_dim(shape.head_dim, [&](auto size) {
    launch(convert_queries<size.value>, "convert_queries",
           dim3(static_cast<unsigned>(ceil_div(shape.queries * shape.heads, 4))), 128, 0, params, stream);
  });
}

}  // namespace headrace::kernels::cuda
