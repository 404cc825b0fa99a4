// docs/design.md, section 6, rule 1: the number of rows alone determines their division into groups of fixed sizes; the
// last group of 64 includes the padding. A kernel of ours computes the shapes that cuBLASLt does not support. Quantised
// weights have a kernel that needs no groups.
#include "kernels/product/bodies.h"
#include "kernels/product/cuda_kernels.h"
#include "kernels/product/cuda_plan.h"
#include "kernels/product/packed.h"
#include "offload/device/cuda/cublas_lt.h"

namespace headrace::kernels::cuda {
namespace {

const void* at(const void* base, int64_t element, DType type) {
  return base == nullptr ? nullptr
                         : static_cast<const std::byte*>(base) + element * static_cast<int64_t>(dtype_bytes(type));
}
void* at(void* base, int64_t element, DType type) {
  return static_cast<std::byte*>(base) + element * static_cast<int64_t>(dtype_bytes(type));
}

// Rows of x and w must start on 16 bytes.
bool taken_by_cublas(const ProductParams& params) {
  return params.k * static_cast<int64_t>(dtype_bytes(params.type)) % 16 == 0;
}

}  // namespace

void product(const ProductParams& params, Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  if (!params.weight.plain()) {
    CHECK(params.path == ProductPath::kDecode, "prefill multiplies weights that are unpacked first");
    if (!packed_product(params, on)) plain_product(params, on);
    return;
  }
  for (int64_t row = 0; row < params.rows;) {
    const int64_t left = params.rows - row, group = product_group(params.path, left);
    ProductParams part = params;
    part.rows = group;
    part.x = at(params.x, row * params.k, params.type);
    part.residual = at(params.residual, row * params.n, params.out_type);
    part.out = at(params.out, row * params.n, params.out_type);
    if (!taken_by_cublas(params) || !ProductPlans::of(on).run(part)) {
      part.rows = left < group ? left : group;
      plain_product(part, on);
    }
    row += group;
  }
}

bool normalises_input(const ProductParams& params) {
  return !params.weight.plain() && params.path == ProductPath::kDecode && packed_normalises(params);
}

bool gated_product(const ProductParams& params, void* activated, Stream& stream) {
  return !params.weight.plain() && packed_gated_product(params, activated, cuda_stream(stream));
}

bool rotated_product(const ProductParams& params, const RopeParams& rope, Stream& stream) {
  return !params.weight.plain() && packed_rotated_product(params, rope, cuda_stream(stream));
}

std::vector<std::string> plain_products(Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  return on.attachment() ? ProductPlans::of(on).plain() : std::vector<std::string>();
}

uint64_t product_library_version() { return cublas_lt().get_version(); }

}  // namespace headrace::kernels::cuda
