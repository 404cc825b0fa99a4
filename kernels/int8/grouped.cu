// The rows of groups, and their products in 8 bits (grouped.h): the product's kernel with a list of tiles of rows,
// which a kernel before it makes.
#include <algorithm>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/int8/bodies.h"
#include "kernels/int8/product_tile.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kPlaceThreads = 1024, kSpreadThreads = 128;
static_assert(kMaxInt8Groups <= kPlaceThreads);

// One block; a thread for each group.
__global__ void __launch_bounds__(kPlaceThreads) place_groups_kernel(const int32_t* begin, Int8Groups groups) {
  const int group = static_cast<int>(threadIdx.x);
  const int rows = group < groups.count ? begin[group + 1] - begin[group] : 0;
  int all = 0;
  const int first = sum_before((rows + kFragmentRows - 1) / kFragmentRows * kFragmentRows, &all);
  if (group >= groups.count) return;
  groups.first[group] = first;
  groups.end[group] = first + rows;
}

// Grid: pairs. A thread copies eight columns at a time.
__global__ void __launch_bounds__(kSpreadThreads) spread_kernel(Int8SpreadParams p, int64_t padded) {
  const int64_t pair = blockIdx.x, row = pair / p.used;
  const int group = p.chosen[pair], place = p.places[pair] - p.begin[group] + p.groups.first[group];
  for (int64_t col = threadIdx.x * 8; col < padded; col += kSpreadThreads * 8) {
    const auto* const from = reinterpret_cast<const uint32_t*>(p.x.values + activation_place(row, col, padded));
    auto* const to = reinterpret_cast<uint32_t*>(p.out.values + activation_place(place, col, padded));
    to[0] = from[0];
    to[2] = from[2];
  }
  __syncthreads();  // all have read the pair's place
  if (threadIdx.x != 0) return;
  p.places[pair] = place;
  p.out.scales[place] = p.x.scales[row];
}

// Lists the tiles of rows of all groups: the group and the first row of each, from listed[1] on; listed[0].x is how
// many there are. One block; a thread for each group.
__global__ void __launch_bounds__(kPlaceThreads) list_tiles_kernel(Int8Groups groups, int tile_rows, int2* listed) {
  const int group = static_cast<int>(threadIdx.x);
  const int first = group < groups.count ? groups.first[group] : 0;
  const int rows = group < groups.count ? groups.end[group] - first : 0, tiles = (rows + tile_rows - 1) / tile_rows;
  int all = 0;
  const int before = sum_before(tiles, &all);
  for (int i = 0; i < tiles; ++i) listed[1 + before + i] = make_int2(group, first + i * tile_rows);
  if (group == 0) listed[0] = make_int2(all, 0);
}

// =====================================================================================================================

template <int kRows, int kCols, int kWarpRows, int kMinBlocks>
void launch(TileCall call, const Int8Groups& groups, int64_t most_tiles, CudaStream& stream) {
  using Whole = TileShape<kRows, kCols, kWarpRows, kMinBlocks, true, true>;
  using Any = TileShape<kRows, kCols, kWarpRows, kMinBlocks, false, true>;
  launch_on(stream, "list_tiles", {1, 1, kPlaceThreads}, list_tiles_kernel, groups, kRows,
            const_cast<int2*>(call.listed));
  const bool whole = call.padded % (Whole::kStages * Whole::kSlab) == 0;
  const int64_t most = most_tiles * ceil_div(call.n, kCols);
  const Grid grid = {std::min<int64_t>(most, int64_t{multiprocessors()} * kMinBlocks), 1, Whole::kThreads,
                     Whole::kSharedBytes};
  launch_on(stream, "int8_groups", grid, whole ? int8_product_kernel<Whole> : int8_product_kernel<Any>, call);
}

}  // namespace

void int8_spread(const Int8SpreadParams& params, Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  launch_on(on, "place_groups", {1, 1, kPlaceThreads}, place_groups_kernel, params.begin, params.groups);
  launch_on(on, "int8_spread", {params.rows * params.used, 1, kSpreadThreads}, spread_kernel, params,
            padded_int8_cols(params.cols));
}

void int8_grouped_product(const Int8GroupedProductParams& params, Stream& stream) {
  CHECK(params.rows <= INT32_MAX / 2 && params.n <= INT32_MAX / 2, "rows=", params.rows, " n=", params.n);
  CHECK(params.tiles != nullptr && reinterpret_cast<uintptr_t>(params.tiles) % sizeof(int2) == 0);
  TileCall call = tile_call(params.x, params.weight, {params.out, params.type}, {params.rows, params.n, params.k});
  call.listed = reinterpret_cast<const int2*>(params.tiles);
  call.ends = params.groups.end;
  call.bias = params.bias;
  call.bias_apart = params.bias_stride;
  call.aligned = call.aligned && chunks_aligned(params.bias, params.type, params.n) && params.bias_stride % 16 == 0;
  call.w_apart = static_cast<int64_t>(int8_values_bytes(Backend::kCuda, params.n, params.k));
  CudaStream& on = cuda_stream(stream);
  const int64_t groups = params.groups.count;
  // Tiles of 128 rows read a matrix less often, but compute more rows that do not exist.
  if (params.rows / groups < 64) {
    return launch<64, 128, 32, 2>(call, params.groups, ceil_div(params.rows, 64) + groups, on);
  }
  launch<128, 256, 64, 1>(call, params.groups, ceil_div(params.rows, 128) + groups, on);
}

}  // namespace headrace::kernels::cuda
