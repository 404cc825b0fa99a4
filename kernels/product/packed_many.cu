#include "kernels/product/packed_many.cuh"

namespace headrace::kernels::cuda {

// Tiles of rows, steps a buffer, blocks at once. Few blocks fill a GPU sooner with the smaller tile.
void packed_product_of_many(const PackedProduct& p, CudaStream& stream) {
  if (p.rows <= (p.runs > 1 ? 64 : 32)) return launch_many<ManyShape<4, 2, 3>>(p, stream);
  launch_many<ManyShape<8, 1, 2>>(p, stream);
}

}  // namespace headrace::kernels::cuda
