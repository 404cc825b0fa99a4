#include "kernels/weights/op.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/weights/bodies.h"
#include "kernels/weights/cuda_layout.h"

namespace headrace {

uint64_t stored_weight_bytes(Backend backend, WeightType type, int64_t rows, int64_t cols) {
  if (backend == Backend::kCpu || is_plain(type)) return weight_bytes(type, rows, cols);
  // In every build: a plan for a card may be made where there is no CUDA.
  using namespace kernels::cuda;
  return static_cast<uint64_t>(ceil_div(rows, kTileRows) * tile_planes(packed_kind(type), cols).bytes);
}

void store_weight(const StoreWeightParams& params, Stream& stream) {
  CHECK(!is_plain(params.type) && params.blocks != nullptr && params.out != nullptr);
  CHECK(0 <= params.row_begin && params.row_begin <= params.row_end && params.row_end <= params.rows, "rows ",
        params.row_begin, " to ", params.row_end, " of ", params.rows);
  CHECK(params.row_begin % kStoreRows == 0, "row_begin=", params.row_begin);
  CHECK(params.cols % weight_type_info(params.type).block_elements == 0, "cols=", params.cols);
  if (params.row_begin == params.row_end) return;
  kernels::dispatch(kernels::cpu::store_weight, kernels::cuda::store_weight, params, stream);
}

void dequantise(const DequantiseParams& params, Stream& stream) {
  const Weight& weight = params.weight;
  CHECK(weight.count > 0 && params.rows >= 0 && params.out != nullptr);
  CHECK(params.ids != nullptr || (0 <= params.first_row && params.first_row + params.rows <= weight.rows()), "rows ",
        params.first_row, " + ", params.rows, " of ", weight.rows());
  CHECK(params.out_type == params.type || params.out_type == DType::kF32, "out_type=", dtype_name(params.out_type),
        " type=", dtype_name(params.type));
  for (int i = 0; i < weight.count; ++i) {
    const WeightPart& part = weight.parts[i];
    CHECK(!is_plain(part.type) || part.type == plain_weight_type(params.type), "a part of type ",
          weight_type_info(part.type).name, " as ", dtype_name(params.type));
  }
  if (params.rows == 0) return;
  kernels::dispatch(kernels::cpu::dequantise, kernels::cuda::dequantise, params, stream);
}

}  // namespace headrace
