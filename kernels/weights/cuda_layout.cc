#include "kernels/weights/cuda_layout.h"

#include "kernels/weights/cuda.h"

namespace headrace::kernels::cuda {

// In every build: a plan for a card may be made where there is no CUDA.
uint64_t stored_weight_bytes(WeightType type, int64_t rows, int64_t cols) {
  return static_cast<uint64_t>(ceil_div(rows, kTileRows) * tile_planes(packed_kind(type), cols).bytes);
}

}  // namespace headrace::kernels::cuda
