// The products of groups of rows, each with its own matrix (grouped_product()): here those of many rows, by the kernel
// of kernels/product/packed.cuh with steps of x, and those of any type, shape and alignment. A group's number of rows
// is not known here, so a block multiplies one tile of rows after another.
#include <algorithm>

#include "kernels/product/cuda_kernels.h"
#include "kernels/product/cuda_plan.h"
#include "kernels/product/packed.cuh"
#include "kernels/product/packed_groups.cuh"
#include "kernels/weights/cuda_value.cuh"

namespace headrace::kernels::cuda {

namespace {

// Of a block; -1: none.
__device__ inline int group_of(const int32_t* present) {
  return present != nullptr ? present[blockIdx.z] : static_cast<int>(blockIdx.z);
}

// Blocks for the groups: if those with rows are listed, no more than the list may have.
int64_t blocks_of_groups(const GroupedProductParams& params) {
  return params.present != nullptr ? params.listed() : params.groups;
}

// A group of a pass of hundreds of rows has a few dozen; blocks for as many as it may have would nearly all be empty,
// and each takes its time.
constexpr int64_t kTilesAtOnce = 2;

struct ManyGroupsShape : PackedShape<2, 1, 2, 4, 4, 2> {
  static constexpr bool kGathers = true;
};

// Grid: tiles of rows that are multiplied at once x blocks of outputs, part after part x groups.
template <typename Shape, typename Kinds>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMinBlocks)
    packed_groups_kernel(const __grid_constant__ PackedProduct all, const __grid_constant__ PackedGroups groups) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ PackedProduct p;  // of the group's rows from a tile on
  int done = 0;
  while (true) {
    const GroupRows of = rows_of_block(groups);
    const int first = of.begin + done;
    if (static_cast<int>(blockIdx.x) * Shape::kRowTiles * 8 >= of.end - first) return;
    __syncthreads();  // shared memory may be overwritten
    if (threadIdx.x == 0) {
      p = all;
      p.rows = of.end - first;
      p.out = static_cast<char*>(all.out) + int64_t{first} * all.n * (all.out_f32 ? 4 : 2);
      p.bias = bias_of_group(all, groups, of.group);
      const int64_t words = (all.k + kRecordCols - 1) / kRecordCols * (kRecordCols / 32);
      if (all.from != nullptr) {
        p.from = all.from + first;
      } else {
        p.x = static_cast<const char*>(all.x) + int64_t{first} * all.k * 2;
        if (all.x_sums != nullptr) p.x_sums = all.x_sums + first * words;
      }
      const int matrix = matrix_of_group(groups, of.group);
      for (int i = 0; i < all.part_count; ++i) {
        p.parts[i].data = static_cast<const char*>(all.parts[i].data) + matrix * groups.stride;
      }
    }
    __syncthreads();
    const auto [index, first_tile] = tiles_of_warp<Shape>(p);
    const PackedPart& part = p.parts[index];
    Sums<Shape> sums = {};
    Kinds::with(part.type, [&](auto kind) { sum_part<Shape, decltype(kind)>(p, part, first_tile, shared, sums); });
    const bool mine = add_parts<Shape>(shared, sums);
    const WarpTiles tiles = tiles_of_warp<Shape>(p);
    if (mine) store_sums<Shape>(p, p.parts[tiles.part], tiles.first, static_cast<int>(blockIdx.x), sums);
    done += static_cast<int>(gridDim.x) * Shape::kRowTiles * 8;
  }
}

template <typename Shape, typename Kinds>
void launch_groups(PackedProduct p, const PackedGroups& groups, int64_t count, CudaStream& stream) {
  const int64_t blocks = place_parts(p, Shape::kWarps * Shape::kWeightTiles * kTileRows);
  void (*const kernel)(PackedProduct, PackedGroups) = packed_groups_kernel<Shape, Kinds>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  const int64_t tiles = std::min<int64_t>(kTilesAtOnce, ceil_div(groups.most_rows, Shape::kRowTiles * 8));
  const Grid grid = {tiles, blocks, Shape::kThreads, Shape::kSharedBytes, count};
  launch_on(stream, "packed_groups", grid, kernel, p, groups);
}

// ---- any type, shape and alignment ----------------------------------------------------------------------------------

constexpr int kPlainThreads = 128, kRowsAWarp = 8;

__device__ inline int matrix_of(const GroupedProductParams& p, int group) {
  return p.matrices != nullptr ? p.matrices[group] : group;
}

// A warp computes a column of up to eight rows; each lane adds every 32nd k, in ascending order. Grid: columns / warps
// of a block x tiles of rows x groups.
__global__ void __launch_bounds__(kPlainThreads) plain_groups_kernel(GroupedProductParams p) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * (kPlainThreads / 32) + threadIdx.x / 32;
  const int group = group_of(p.present);
  if (group < 0) return;
  const int64_t begin = p.begin[group], end = p.begin[group + 1];
  const int64_t row = begin + static_cast<int64_t>(blockIdx.y) * kRowsAWarp;
  if (col >= p.n || row >= end) return;
  const int rows = static_cast<int>(end - row < kRowsAWarp ? end - row : kRowsAWarp), lane = threadIdx.x % 32;
  const WeightPart* part = p.weight.parts;
  int64_t in_part = col;
  for (; in_part >= part->rows; ++part) in_part -= part->rows;
  const void* const data = static_cast<const char*>(part->data) + matrix_of(p, group) * p.stride;
  const bool packed = packed_kind(part->type).bits != 16;
  int64_t from[kRowsAWarp];
#pragma unroll
  for (int r = 0; r < kRowsAWarp; ++r) from[r] = p.from != nullptr && r < rows ? p.from[row + r] : row + r;
  float sums[kRowsAWarp] = {};
  for (int64_t i = lane; i < p.k; i += 32) {
    const float w = packed ? rounded_to(p.type, packed_weight(part->type, data, p.k, in_part, i))
                           : load_one(p.type, data, in_part * p.k + i);
#pragma unroll
    for (int r = 0; r < kRowsAWarp; ++r) {
      if (r < rows) sums[r] = fmaf(load_one(p.type, p.x, from[r] * p.k + i), w, sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsAWarp; ++r) {
    sums[r] = warp_sum(sums[r]);
    if (lane != r || r >= rows) continue;
    if (p.bias != nullptr) {  // found here, for the loop leaves no registers to keep it in
      const void* const bias = static_cast<const char*>(p.bias) + matrix_of(p, group_of(p.present)) * p.bias_stride;
      sums[r] += load_one(p.type, bias, col);
    }
    store_one(p.out_type, p.out, (row + r) * p.n + col, sums[r]);
  }
}

void plain_groups(const GroupedProductParams& params, CudaStream& stream) {
  const Grid grid = {ceil_div(params.n, kPlainThreads / 32), ceil_div(params.most_rows, kRowsAWarp), kPlainThreads, 0,
                     blocks_of_groups(params)};
  launch_on(stream, "plain_groups", grid, plain_groups_kernel, params);
}

// =====================================================================================================================

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

bool is_floats(WeightType type) { return packed_kind(type).floats; }

// The parts are of usual types, or all of the one that has floating-point numbers.
bool takes(const GroupedProductParams& params) {
  bool takes = params.type == DType::kBF16 && params.k % 8 == 0 && aligned(params.x) && params.stride % 16 == 0;
  takes = takes && params.n <= INT32_MAX && params.k <= INT32_MAX && params.rows <= INT32_MAX;
  takes = takes && std::max(params.x_rows, params.most_rows) * params.k * 2 <= UINT32_MAX;
  for (int i = 0; i < params.weight.count; ++i) {
    const WeightPart& part = params.weight.parts[i];
    const bool usual = !is_other(part.type) && !is_grid(part.type) && !is_floats(params.weight.parts[0].type);
    takes =
        takes && aligned(part.data) && (usual || (is_floats(part.type) && part.type == params.weight.parts[0].type));
  }
  return takes;
}

PackedProduct packed_params(const GroupedProductParams& params) {
  PackedProduct p{};
  int col = 0;
  for (int i = 0; i < params.weight.count; ++i) {
    const WeightPart& part = params.weight.parts[i];
    const int rows = static_cast<int>(part.rows);
    p.parts[i] = {.data = part.data, .type = part.type, .rows = rows, .first_block = 0, .first_col = col};
    col += rows;
  }
  p.part_count = params.weight.count;
  p.x = params.x;
  p.from = params.from;
  p.bias = params.bias;
  p.out = params.out;
  p.out_f32 = params.out_type == DType::kF32;
  p.rows = static_cast<int>(params.rows);
  p.n = p.out_cols = static_cast<int>(params.n);
  p.k = static_cast<int>(params.k);
  p.runs = 4;
  return p;
}

PackedGroups packed_groups(const GroupedProductParams& params) {
  return {params.begin,       params.present, params.stride, static_cast<int>(params.most_rows),
          params.bias_stride, params.matrices};
}

bool sums_minima(const PackedProduct& p) {
  bool any = false;
  for (int i = 0; i < p.part_count; ++i) any = any || has_minima(packed_kind(p.parts[i].type).scales);
  return any;
}

}  // namespace

// The shape for many rows is that of packed_product_in_four().
void grouped_product(const GroupedProductParams& params, Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  if (!takes(params)) return plain_groups(params, on);
  PackedProduct p = packed_params(params);
  const PackedGroups groups = packed_groups(params);
  const int64_t blocks = blocks_of_groups(params);
  if (packed_few_groups(p, groups, blocks, on)) return;
  if (sums_minima(p)) {
    PackedProduct rows_of_x = p;
    if (params.from != nullptr) rows_of_x.rows = static_cast<int>(params.x_rows);
    DeviceBuffer& sums = ProductPlans::of(on).sums();
    CHECK(static_cast<uint64_t>(rows_of_x.rows * ceil_div(p.k, kRecordCols) * (kRecordCols / 32) * 4) <= sums.bytes(),
          "a grouped product of ", rows_of_x.rows, " rows of ", p.k, " has sums for which there is no room");
    sum_columns(rows_of_x, sums.as<uint32_t>(), on);
    p.x_sums = sums.as<uint32_t>();
  }
  if (is_floats(p.parts[0].type)) return launch_groups<ManyGroupsShape, FloatKinds>(p, groups, blocks, on);
  launch_groups<ManyGroupsShape, UsualKinds>(p, groups, blocks, on);
}

bool grouped_gated_product(const GroupedProductParams& params, void* activated, Stream& stream) {
  if (!takes(params)) return false;
  PackedProduct p = packed_params(params);
  if (!halve_parts(&p)) return false;
  p.gated = true;
  p.activation = params.activation;
  p.out = activated;
  p.out_cols = p.n / 2;
  return packed_few_groups(p, packed_groups(params), blocks_of_groups(params), cuda_stream(stream));
}

}  // namespace headrace::kernels::cuda
