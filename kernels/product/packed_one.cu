#include "kernels/product/packed.cuh"

namespace headrace::kernels::cuda {

// Tiles of rows, tiles of weights a warp, warps, runs of k, stages of x or 0, blocks at once.
void packed_product_in_one(const PackedProduct& p, CudaStream& stream) {
  if (has_whole_x(p)) return launch_packed<PackedShape<1, 1, 8, 1, 0, 2>>(p, stream);
  if (p.rows <= 8) return launch_packed<PackedShape<1, 2, 4, 1, 4, 2>>(p, stream);
  launch_packed<PackedShape<2, 2, 4, 1, 4, 2>>(p, stream);
}

}  // namespace headrace::kernels::cuda
