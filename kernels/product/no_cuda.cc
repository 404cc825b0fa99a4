// What stands in for the product's CUDA bodies in a build without them.
#include "kernels/cuda/no_body.h"
#include "kernels/product/cuda.h"

namespace headrace::kernels::cuda {

void product(const ProductParams&, Stream&) { no_body("product"); }
std::vector<std::string> plain_products(Stream&) { no_body("product"); }
uint64_t product_library_version() { no_body("product"); }

}  // namespace headrace::kernels::cuda
