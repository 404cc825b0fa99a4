// The products of groups of few rows (kernels/product/packed_groups.cuh): the kernel of kernels/product/packed.cuh that
// holds all of x, for one group a block. One row of eight experts has too few blocks to wait for anything that they do
// not need: a kernel for each type of weights has registers for three blocks on a multiprocessor, which is all blocks
// of the first product of Qwen3-30B-A3B at once on a GPU with 132, and their loads are under way together.
#include <algorithm>

#include "kernels/product/packed.cuh"
#include "kernels/product/packed_groups.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kTileOfGroup = 8;

// Kernels of other types spill with the registers that three blocks leave.
constexpr bool is_lean(WeightType type) {
  return type == WeightType::kQ4K || type == WeightType::kQ6K || type == WeightType::kBF16 ||
         type == WeightType::kMXFP4;
}

// Runs of k that have no record would be idle warps, so where k has three records there are three.
template <int kParts, WeightType kType>
struct FewGroupsShape : PackedShape<1, 1, 2, kParts, 0, is_lean(kType) ? 12 / kParts : 6 - kParts> {
  static constexpr bool kRotates = false, kGates = kParts == 4, kNormalises = false, kGathers = true;
};

// Grid: 1 x blocks of outputs x groups. The product has one part, or is gated and has two of one type.
template <typename Shape, typename Kind>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMinBlocks)
    packed_few_groups_kernel(const __grid_constant__ PackedProduct all, const __grid_constant__ PackedGroups groups) {
  extern __shared__ __align__(128) unsigned char shared[];
  int tile = 0;
  while (true) {
    const GroupRows rows = rows_of_block(groups);
    const int first = rows.begin + tile;
    if (first >= rows.end) return;  // only of the first tile: the group has no rows
    if (tile > 0) __syncthreads();  // shared memory may be overwritten
    PackedProduct p = all;
    p.rows = min(rows.end - first, groups.most_rows);
    if (all.from != nullptr) {
      p.from = all.from + first;
    } else {
      p.x = static_cast<const char*>(all.x) + int64_t{first} * all.k * 2;
    }
    const auto [index, first_tile] = tiles_of_warp<Shape>(all);
    PackedPart part = all.parts[index];
    part.data = static_cast<const char*>(part.data) + matrix_of_group(groups, rows.group) * groups.stride;
    Sums<Shape> sums = {};
    sum_part<Shape, Kind>(p, part, first_tile, shared, sums);
    if constexpr (Shape::kParts == 3) {
      // What the first of four runs, without a record, adds: -0 becomes 0.
#pragma unroll
      for (float& sum : sums[0][0]) sum += 0.0f;
    }
    const GroupRows after = rows_of_block(groups);
    bool mine = add_parts<Shape>(shared, sums);
    p.bias = bias_of_group(all, groups, after.group);
    if constexpr (Shape::kGates) {
      if (all.gated) {
        mine = apply_gate<Shape>(all, p.bias, shared, mine, sums);
        p.bias = nullptr;
      }
    }
    p.out = static_cast<char*>(all.out) + int64_t{after.begin + tile} * all.out_cols * (all.out_f32 ? 4 : 2);
    const WarpTiles tiles = tiles_of_warp<Shape>(all);
    if (mine) store_sums<Shape>(p, all.parts[tiles.part], tiles.first, 0, sums);
    tile += groups.most_rows;
    if (after.begin + tile >= after.end) return;
  }
}

template <int kParts, WeightType kType>
void launch_kind(PackedProduct p, const PackedGroups& groups, int64_t count, CudaStream& stream) {
  using Shape = FewGroupsShape<kParts, kType>;
  void (*const kernel)(PackedProduct, PackedGroups) = packed_few_groups_kernel<Shape, Kind<kType>>;
  const int64_t blocks = place_parts(p, Shape::kWarps * kTileRows);
  PackedProduct tile = p;
  tile.rows = groups.most_rows;
  const int bytes = std::max(Shape::kSharedBytes, x_bytes<Shape>(tile) + Shape::kScalesBytes);
  // Without this the driver leaves shared memory for fewer blocks than the registers allow.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  launch_on(stream, "packed_few_groups", {1, blocks, Shape::kThreads, bytes, count}, kernel, p, groups);
}

template <int kParts>
void launch_type(const PackedProduct& p, const PackedGroups& groups, int64_t count, CudaStream& stream) {
  switch (p.parts[0].type) {
    case WeightType::kQ4_0:
      return launch_kind<kParts, WeightType::kQ4_0>(p, groups, count, stream);
    case WeightType::kQ4_1:
      return launch_kind<kParts, WeightType::kQ4_1>(p, groups, count, stream);
    case WeightType::kQ4K:
      return launch_kind<kParts, WeightType::kQ4K>(p, groups, count, stream);
    case WeightType::kQ5_0:
      return launch_kind<kParts, WeightType::kQ5_0>(p, groups, count, stream);
    case WeightType::kQ5_1:
      return launch_kind<kParts, WeightType::kQ5_1>(p, groups, count, stream);
    case WeightType::kQ5K:
      return launch_kind<kParts, WeightType::kQ5K>(p, groups, count, stream);
    case WeightType::kQ6K:
      return launch_kind<kParts, WeightType::kQ6K>(p, groups, count, stream);
    case WeightType::kQ8_0:
      return launch_kind<kParts, WeightType::kQ8_0>(p, groups, count, stream);
    case WeightType::kMXFP4:
      return launch_kind<kParts, WeightType::kMXFP4>(p, groups, count, stream);
    default:
      return launch_kind<kParts, WeightType::kBF16>(p, groups, count, stream);
  }
}

}  // namespace

bool packed_few_groups(const PackedProduct& p, const PackedGroups& groups, int64_t blocks, CudaStream& stream) {
  PackedProduct tile = p;
  tile.rows = std::min(groups.most_rows, kTileOfGroup);
  while (tile.rows > 0 && !has_whole_x(tile)) --tile.rows;
  if (groups.most_rows > kMostFewGroupRows || tile.rows == 0) return false;
  PackedGroups tiles = groups;
  tiles.most_rows = tile.rows;
  if (p.gated) {
    launch_type<4>(p, tiles, blocks, stream);
    return true;
  }
  const auto launch = ceil_div(p.k, kRecordCols) == 3 ? launch_type<3> : launch_type<4>;
  for (int i = 0; i < p.part_count; ++i) {
    PackedProduct one = p;
    one.parts[0] = p.parts[i];
    one.part_count = 1;
    launch(one, tiles, blocks, stream);
  }
  return true;
}

}  // namespace headrace::kernels::cuda
