// DESIGN section 6, rule 1: the rows are cut into groups of fixed sizes, by their number alone; the last group of 64
// takes the padding along. Shapes that cuBLASLt does not take go to a kernel of our own.
#include "kernels/cuda/product.h"

#include <algorithm>

#include "kernels/cuda/product_kernels.h"
#include "kernels/cuda/product_plan.h"

namespace headrace::kernels::cuda {

namespace {

constexpr int64_t kPrefillGroups[] = {2048, 512};  // then groups of kProductRowPadding

int64_t group_of(ProductPath path, int64_t rows_left) {
  if (path == ProductPath::kPrefill) {
    for (int64_t group : kPrefillGroups) {
      if (rows_left >= group) return group;
    }
  }
  return kProductRowPadding;
}

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
  for (int64_t row = 0; row < params.rows;) {
    const int64_t left = params.rows - row, group = group_of(params.path, left);
    ProductParams part = params;
    part.rows = group;
    part.x = at(params.x, row * params.k, params.type);
    part.residual = at(params.residual, row * params.n, params.type);
    part.out = at(params.out, row * params.n, params.out_type);
    if (!taken_by_cublas(params) || !ProductPlans::of(on).run(part)) {
      part.rows = left < group ? left : group;
      plain_product(part, on);
    }
    row += group;
  }
}

uint64_t product_workspace_bytes(Stream& stream) {
  return cuda_stream(stream).attachment() ? 0 : kProductWorkspaceBytes + kProductSumsBytes;
}

// The buffers of the check in product_plan.cc: a group of x and of out, two rows of out, a counter.
uint64_t product_check_bytes(const ProductParams& params) {
  const uint64_t group = static_cast<uint64_t>(group_of(params.path, params.rows));
  const uint64_t x_row = static_cast<uint64_t>(params.k) * dtype_bytes(params.type);
  const uint64_t out_row = static_cast<uint64_t>(params.n) * dtype_bytes(params.out_type);
  const uint64_t sums_row = static_cast<uint64_t>(params.n) * sizeof(float);
  return whole_pages(group * x_row) +
         whole_pages(std::max(group * out_row, std::min(group * sums_row, kProductSumsBytes))) +
         2 * whole_pages(sums_row) + kPageBytes;
}

}  // namespace headrace::kernels::cuda
