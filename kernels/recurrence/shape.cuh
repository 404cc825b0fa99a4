// A DeltaShape for device code.
#pragma once

#include "kernels/recurrence/op.h"

namespace headrace::kernels::cuda {

__device__ inline int64_t key_head(const DeltaShape& shape, int64_t head) {
  return shape.tiled ? head % shape.k_heads : head / (shape.v_heads / shape.k_heads);
}
__device__ inline int64_t k_width(const DeltaShape& shape) { return shape.k_heads * shape.k_dim; }
__device__ inline int64_t dim_tiles(const DeltaShape& shape) { return (shape.k_dim + 15) / 16; }
__device__ inline int64_t v_width(const DeltaShape& shape) { return shape.v_heads * shape.v_dim; }
__device__ inline int64_t channels(const DeltaShape& shape) { return 2 * k_width(shape) + v_width(shape); }

}  // namespace headrace::kernels::cuda
