// Attention over a prefix of low-bit rows (kernels/rows/op.h) with tiles, and the rotation of its queries.
#include "kernels/attention/few_int4_tile.cuh"
#include "kernels/attention/few_int8_tile.cuh"
#include "kernels/attention/launch.cuh"
#include "kernels/attention/low_bit_tile.cuh"
#include "kernels/attention/prefix_block.cuh"

namespace headrace::kernels::cuda {

namespace {

template <typename T, int kDim, int kHalves, DType kStored>
using FewTile =
    std::conditional_t<kStored == DType::kInt8, FewInt8Tile<T, kDim, kHalves>, FewInt4Tile<T, kDim, kHalves>>;

template <typename T, int kDim, int kHalves, DType kStored>
__global__ void __launch_bounds__(128, kDim <= 128 || kStored == DType::kInt8 ? 4 : 3)
    prefix_few_rows(const __grid_constant__ PrefixAttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = FewTile<T, kDim, kHalves, kStored>;
  const PrefixBlock<T, Tile::kRows> block(params);
  Tile tile;
  const int seen = params.shape.window > 0 ? block.bounds().first : 0;
  tile.open(shared, params.shape, params.segments[block.n], block.kv_head, seen);
  const TileBounds bounds = block.bounds();
  tile.start(queries_aligned(params.shape, params.q), bounds, [&](int row) { return block.row_of(row); });
  tile.walk(bounds.limit);
  tile.store(block.rows - block.begin, params.scratch, [&](int row) { return block.state_of(row); });
}

template <typename T, int kDim, int kMTiles, DType kStored>
__global__ void __launch_bounds__(128, kMTiles == 1 ? 2 : 1)
    prefix_low_bit_tiles(const __grid_constant__ PrefixAttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = LowBitTile<T, kDim, kMTiles, kStored>;
  using Block = PrefixBlock<T, Tile::kRows>;
  Tile tile;
  {
    const Block block(params);
    const auto row_of = [&](int row) { return block.row_of(row); };
    const TileBounds bounds = block.bounds();
    tile.start(shared, params.shape, bounds, row_of);
    tile.walk(params.segments[block.n], block.kv_head, bounds, block.begin + Tile::warp_row() < block.rows,
              queries_aligned(params.shape, params.q), row_of);
  }
  tile.finish();
  const Block block(params);  // the products leave no registers to keep it in
  tile.store(block.rows - block.begin, params.scratch, [&](int row) { return block.state_of(row); });
}

template <typename T, int kDim, DType kStored>
void launch_tiles(const PrefixAttentionParams& params, const LaunchStream& on) {
  const auto launch_block = [&]<typename Tile>(auto kernel, const char* name, std::type_identity<Tile>) {
    launch(kernel, name, prefix_grid<Tile>(params), Tile::kThreads, Tile::kSharedBytes, params, on);
  };
  const int64_t rows = prefix_rows_of(params.shape);
  // int4 with heads of 128 gains too little: 2%.
  if constexpr (kStored == DType::kInt8 || kDim > 128) {
    const auto launch_few = [&](auto halves) {
      launch_block(prefix_few_rows<T, kDim, halves.value, kStored>, "prefix_few_rows",
                   std::type_identity<FewTile<T, kDim, halves.value, kStored>>());
    };
    if (rows <= 8) return launch_few(std::integral_constant<int, 1>());
    if (rows <= 16) return launch_few(std::integral_constant<int, 2>());
    if (rows <= 32) return launch_few(std::integral_constant<int, 4>());
  }
  using Small = LowBitTile<T, kDim, 1, kStored>;
  if (kDim > 128 || rows <= Small::kRows)  // a large head has no larger block
    return launch_block(prefix_low_bit_tiles<T, kDim, 1, kStored>, "prefix_low_bit_tiles", std::type_identity<Small>());
  if constexpr (kDim <= 128)
    launch_block(prefix_low_bit_tiles<T, kDim, 2, kStored>, "prefix_low_bit_tiles",
                 std::type_identity<LowBitTile<T, kDim, 2, kStored>>());
}
template <typename T, DType kStored>
void launch_tiles(const PrefixAttentionParams& params, const LaunchStream& on) {
  if (params.shape.head_dim <= 64) return launch_tiles<T, 64, kStored>(params, on);
  if (params.shape.head_dim <= 128) return launch_tiles<T, 128, kStored>(params, on);
  launch_tiles<T, 256, kStored>(params, on);
}
template <typename T>
void launch_tiles(const PrefixAttentionParams& params, const LaunchStream& on) {
  if (params.shape.k_type == DType::kInt8) return launch_tiles<T, DType::kInt8>(params, on);
  launch_tiles<T, DType::kInt4>(params, on);
}

constexpr int kRotateWarps = 4;

// A warp: one query head. Lane i has elements [i * kEach, (i + 1) * kEach).
template <int kEach>
__global__ void __launch_bounds__(kRotateWarps * 32)
    rotate_kernel(const __grid_constant__ PrefixAttentionParams params) {
  constexpr int kDim = 32 * kEach;
  const AttentionShape& shape = params.shape;
  const int64_t index = int64_t{blockIdx.x} * kRotateWarps + threadIdx.x / 32;
  if (index >= shape.queries * shape.heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t from = index / shape.heads * shape.q_stride + index % shape.heads * kDim + lane * kEach;
  float x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = load_one(params.q, shape.type, from + i);
#pragma unroll
  for (int half = 1; half < kEach; half *= 2) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i / half % 2 != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = __fadd_rn(a, b);
      x[i + half] = __fsub_rn(a, b);
    }
  }
#pragma unroll
  for (int half = 1; half < 32; half *= 2) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], half);
      x[i] = (lane & half) == 0 ? __fadd_rn(x[i], other) : __fsub_rn(other, x[i]);
    }
  }
  const float norm = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(kDim)));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    store_one(params.rotated_q, shape.type, index * kDim + lane * kEach + i, __fmul_rn(x[i], norm));
  }
}

}  // namespace

PrefixAttentionParams rotate_queries(const PrefixAttentionParams& params, const LaunchStream& on) {
  const AttentionShape& shape = params.shape;
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.queries * shape.heads, kRotateWarps)));
  launch(shape.head_dim == 32    ? rotate_kernel<1>
         : shape.head_dim == 64  ? rotate_kernel<2>
         : shape.head_dim == 128 ? rotate_kernel<4>
         : shape.head_dim == 256 ? rotate_kernel<8>
                                 : rotate_kernel<16>,
         "rotate_queries", grid, kRotateWarps * 32, 0, params, on);
  PrefixAttentionParams rotated = params;
  rotated.q = params.rotated_q;
  rotated.shape.q_stride = shape.heads * shape.head_dim;
  return rotated;
}

void low_bit_segment_states(const PrefixAttentionParams& params, const LaunchStream& on) {
  for (int64_t i = 0; i < params.segment_count; ++i) {
    const uint64_t rows = static_cast<uint64_t>(params.shape.kv_heads * params.segments[i].stride_rows);
    CHECK(rows * row_bytes(DType::kInt8, params.shape.head_dim) < 4 * kGiB, "rows=", rows);
  }
  if (params.shape.type == DType::kBF16) return launch_tiles<__nv_bfloat16>(params, on);
  launch_tiles<__half>(params, on);
}

}  // namespace headrace::kernels::cuda
