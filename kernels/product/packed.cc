#include "kernels/product/packed.h"

#include <algorithm>

#include "kernels/product/cuda_plan.h"
#include "kernels/weights/cuda_layout.h"

namespace headrace::kernels::cuda {

namespace {

// A matrix with more outputs than this fills a GPU without dividing k: it has more blocks of 128 than an H200 has
// multiprocessors, 132.
constexpr int64_t kMaxColsInFour = 16896;

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

bool takes(const ProductParams& params) {
  bool takes = params.type == DType::kBF16 && params.k % 8 == 0 && aligned(params.x);
  takes = takes && params.rows <= INT32_MAX && params.n <= INT32_MAX && params.k <= INT32_MAX;
  for (int i = 0; i < params.weight.count; ++i) takes = takes && aligned(params.weight.parts[i].data);
  return takes;
}

// Every block normalises all rows, one after another. For more bytes than this a separate kernel costs less.
constexpr int kMaxNormedBytes = 16 * 1024;

PackedProduct packed_params(const ProductParams& params) {
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
  p.bias = params.bias;
  p.residual = params.residual;
  p.out = params.out;
  p.out_f32 = params.out_type == DType::kF32;
  p.rows = static_cast<int>(params.rows);
  p.n = static_cast<int>(params.n);
  p.k = static_cast<int>(params.k);
  p.out_cols = p.n;
  p.norm = params.norm.weight;
  p.x_f32 = params.norm.weight != nullptr && params.norm.x_type == DType::kF32;
  p.eps = params.norm.eps;
  return p;
}

bool has_minima(const PackedProduct& p) {
  const auto has = [](const PackedPart& part) { return has_minima(packed_kind(part.type).scales); };
  return std::any_of(p.parts, p.parts + p.part_count, has);
}

int64_t sums_row_bytes(const PackedProduct& p) { return ceil_div(p.k, kRecordCols) * (kRecordCols / 32) * 4; }

const void* rows_from(const void* data, int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}

// The number of rows for which the stream's memory of sums has room: sums of x, and sums of runs that have their own
// blocks. A decode step has far fewer rows, or a few more.
int rows_that_fit(const PackedProduct& p) {
  int64_t row_bytes = sums_row_bytes(p), blocks = 0;
  if (p.runs > 1) {
    for (int i = 0; i < p.part_count; ++i) blocks += ceil_div(p.parts[i].rows, kTileOutputs);
    row_bytes += p.runs * blocks * kTileOutputs * static_cast<int64_t>(sizeof(float));
  }
  const auto fit = static_cast<int>(std::min<int64_t>(kProductSumsBytes / row_bytes, 32768));
  return fit / kMaxTileRows * kMaxTileRows;
}

enum class KernelSet { kUsual, kOthers, kGrids };

KernelSet set_of(WeightType type) {
  return is_grid(type) ? KernelSet::kGrids : is_other(type) ? KernelSet::kOthers : KernelSet::kUsual;
}

// Keeps only the parts that one of the sets of kernels multiplies.
PackedProduct with_parts(PackedProduct p, KernelSet set) {
  int count = 0;
  for (int i = 0; i < p.part_count; ++i) {
    if (set_of(p.parts[i].type) == set) p.parts[count++] = p.parts[i];
  }
  p.part_count = count;
  return p;
}

void launch_rows(PackedProduct p, CudaStream& stream) {
  ProductPlans& plans = ProductPlans::of(stream);
  auto* const sums = plans.sums().as<std::byte>();
  p.run_sums = reinterpret_cast<float*>(sums + p.rows * sums_row_bytes(p));
  p.arrived = plans.arrived().as<uint32_t>();
  const PackedProduct others = with_parts(p, KernelSet::kOthers), grids = with_parts(p, KernelSet::kGrids);
  if (others.part_count > 0) packed_product_of_others(others, stream);
  if (grids.part_count > 0) packed_product_of_grids(grids, stream);
  p = with_parts(p, KernelSet::kUsual);
  if (p.part_count == 0) return;
  if (!has_whole_x(p) && has_minima(p)) {
    p.x_sums = reinterpret_cast<uint32_t*>(sums);
    sum_columns(p, reinterpret_cast<uint32_t*>(sums), stream);
  }
  if (p.rows > kMaxFewRows) {
    packed_product_of_many(p, stream);
  } else if (p.runs > 1) {
    packed_product_in_four(p, stream);
  } else {
    packed_product_in_one(p, stream);
  }
}

// n and k alone determine how k is divided, so the kernel that computes a sum does not change its bits.
void launch_product(PackedProduct p, CudaStream& stream) {
  p.runs = p.n > kMaxColsInFour ? 1 : 4;
  const int fit = rows_that_fit(p);
  CHECK(fit > 0, "a product of ", p.n, " x ", p.k, " has sums for which there is no room");
  const int64_t row_bytes = int64_t{p.n} * (p.out_f32 ? 4 : 2);
  while (p.rows > 0) {
    PackedProduct part = p;
    part.rows = std::min(p.rows, fit);
    launch_rows(part, stream);
    p.rows -= part.rows;
    p.x = rows_from(p.x, int64_t{fit} * p.k * 2);
    p.residual = rows_from(p.residual, fit * row_bytes);
    p.out = static_cast<std::byte*>(p.out) + fit * row_bytes;
  }
}

}  // namespace

bool halve_parts(PackedProduct* p) {
  PackedPart* const parts = p->parts;
  if (p->part_count == 1 && parts[0].rows % (2 * kTileRows) == 0) {
    const PackedKind kind = packed_kind(parts[0].type);
    const int rows = parts[0].rows / 2;
    const int64_t bytes = kind.bits == 16 ? int64_t{rows} * p->k * 2 : rows / kTileRows * tile_planes(kind, p->k).bytes;
    parts[0].rows = rows;
    parts[1] = parts[0];
    parts[1].data = static_cast<const std::byte*>(parts[0].data) + bytes;
    p->part_count = 2;
  }
  return p->part_count == 2 && parts[0].rows == parts[1].rows && parts[0].type == parts[1].type;
}

int64_t place_parts(PackedProduct& p, int block_rows) {
  if (p.gated) return ceil_div(p.parts[0].rows, block_rows / 2);
  int64_t blocks = 0;
  for (int i = 0; i < p.part_count; ++i) {
    p.parts[i].first_block = static_cast<int>(blocks);
    blocks += ceil_div(p.parts[i].rows, block_rows);
  }
  return blocks;
}

bool packed_normalises(const ProductParams& params) {
  if (!takes(params) || !aligned(params.norm.weight)) return false;
  const PackedProduct p = packed_params(params);
  return has_whole_x(p) && whole_x_bytes(p) <= kMaxNormedBytes;
}

bool packed_product(const ProductParams& params, CudaStream& stream) {
  if (!takes(params)) return false;
  launch_product(packed_params(params), stream);
  return true;
}

bool packed_rotated_product(const ProductParams& params, const RopeParams& rope, CudaStream& stream) {
  bool heads = rope.q_norm == nullptr && rope.head_dim % (4 * kTileRows) == 0 && params.n <= kMaxColsInFour;
  for (int i = 0; i < params.weight.count; ++i) heads = heads && params.weight.parts[i].rows % rope.head_dim == 0;
  if (!heads || !takes(params)) return false;
  PackedProduct p = packed_params(params);
  if (!has_whole_x(p)) return false;
  p.rope = {.positions = rope.positions,
            .out_first = rope.out_first,
            .cos_sin = rope.cos_sin,
            .q_table = rope.q_table,
            .k_out = rope.k_out,
            .v_out = rope.v_out,
            .k_type = rope.k_type,
            .v_type = rope.v_type,
            .heads = static_cast<int>(rope.heads),
            .kv_heads = static_cast<int>(rope.kv_heads),
            .head_dim = static_cast<int>(rope.head_dim),
            .table_rows = rope.table_rows,
            .out_row_stride = rope.out_row_stride,
            .out_head_stride = rope.out_head_stride};
  launch_product(p, stream);
  return true;
}

bool packed_gated_product(const ProductParams& params, void* activated, CudaStream& stream) {
  PackedProduct p = packed_params(params);
  if (!takes(params) || params.n <= kMaxColsInFour || !has_whole_x(p) || !halve_parts(&p)) return false;
  p.gated = true;
  p.activation = params.activation;
  p.out = activated;
  p.out_cols = p.n / 2;
  launch_product(p, stream);
  return true;
}

}  // namespace headrace::kernels::cuda
