#include "kernels/product/packed.cuh"
#include "kernels/product/packed_many.cuh"

namespace headrace::kernels::cuda {

// As packed_product_of_others().
void packed_product_of_grids(const PackedProduct& p, CudaStream& stream) {
  if (!has_whole_x(p)) return launch_many<ManyShape<4, 2, 2>, GridKinds>(p, stream);
  if (p.runs == 1) return launch_packed<PackedShape<1, 1, 8, 1, 0, 2>, GridKinds>(p, stream);
  launch_packed<PackedShape<1, 1, 2, 4, 0, 2>, GridKinds>(p, stream);
}

}  // namespace headrace::kernels::cuda
