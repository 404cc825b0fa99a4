#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/int8/bodies.h"
#include "kernels/int8/product_tile.cuh"

namespace headrace::kernels::cuda {

namespace {

struct Tiling {
  int rows, cols, blocks;  // blocks that a multiprocessor runs at once
  double turn, alone;      // time of a turn of so many blocks, and of one block, relative
};
// The area over the share of the largest tiling's rate that was measured on an H200, or guessed for the smallest.
constexpr Tiling kTilings[] = {
    {128, 256, 1, 1.0, 1.0}, {128, 128, 1, 0.5 / 0.87, 0.5 / 0.87}, {64, 128, 2, 0.5 / 0.6, 0.25 / 0.45}};

// The tiling that takes the least time. It changes no bit.
int best_tiling(int64_t rows, int64_t n, int processors) {
  int best = 0;
  double least = 0;
  for (int i = 0; i < 3; ++i) {
    const Tiling& tiling = kTilings[i];
    const int64_t tiles = ceil_div(rows, tiling.rows) * ceil_div(n, tiling.cols), at_once = processors * tiling.blocks;
    const int64_t rest = tiles % at_once;
    const double last = rest == 0 ? 0 : rest <= processors ? tiling.alone : tiling.turn;
    const double time = static_cast<double>(tiles / at_once) * tiling.turn + last;
    if (i == 0 || time < least) {
      least = time;
      best = i;
    }
  }
  return best;
}

template <int kRows, int kCols, int kWarpRows, int kMinBlocks>
void launch(TileCall call, int processors, CudaStream& stream) {
  using Whole = TileShape<kRows, kCols, kWarpRows, kMinBlocks, true>;
  using Any = TileShape<kRows, kCols, kWarpRows, kMinBlocks, false>;
  call.row_tiles = static_cast<int>(ceil_div(call.rows, kRows));
  call.tiles = call.row_tiles * static_cast<int>(ceil_div(call.n, kCols));
  const bool whole = call.padded % (Whole::kStages * Whole::kSlab) == 0;
  const Grid grid = {std::min(call.tiles, processors * kMinBlocks), 1, Whole::kThreads, Whole::kSharedBytes};
  launch_on(stream, "int8_product", grid, whole ? int8_product_kernel<Whole> : int8_product_kernel<Any>, call);
}

}  // namespace

void int8_product(const Int8ProductParams& params, Stream& stream) {
  CHECK(params.rows <= INT32_MAX / 2 && params.n <= INT32_MAX / 2, "rows=", params.rows, " n=", params.n);
  TileCall call = tile_call(params.x, params.weight, {params.out, params.type}, {params.rows, params.n, params.k});
  call.bias = params.bias;
  call.residual = params.residual;
  const auto aligned = [&](const void* data) { return chunks_aligned(data, params.type, params.n); };
  call.aligned = call.aligned && aligned(params.bias) && aligned(params.residual);
  CudaStream& on = cuda_stream(stream);
  const int processors = multiprocessors();
  switch (best_tiling(params.rows, params.n, processors)) {
    case 0:
      return launch<128, 256, 64, 1>(call, processors, on);
    case 1:
      return launch<128, 128, 32, 1>(call, processors, on);
    default:
      return launch<64, 128, 32, 2>(call, processors, on);
  }
}

}  // namespace headrace::kernels::cuda
