// DESIGN section 6, rule 1: the rows are cut into groups of fixed sizes, by their number alone; the last group of 64
// takes the padding along. Shapes that cuBLASLt does not take go to a kernel of our own.
#include "kernels/cuda/product.h"

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

// One group: `params.rows` is what remains of it, `group` its size with the padding.
void run_group(const ProductParams& params, int64_t group, CudaStream& stream) {
  // Rows of x and w must start on 16 bytes.
  if (params.k * static_cast<int64_t>(dtype_bytes(params.type)) % 16 != 0) return plain_product(params, stream);
  ProductParams whole = params;
  whole.rows = group;
  // The bias has the type of the output in cuBLASLt.
  const bool bias_apart = params.bias != nullptr && params.out_type != params.type;
  if (bias_apart) whole.bias = nullptr;
  if (!ProductPlans::of(stream).run(whole)) return plain_product(params, stream);
  if (bias_apart) add_bias(static_cast<float*>(params.out), params.bias, params.type, params.rows, params.n, stream);
}

}  // namespace

void product(const ProductParams& params, Stream& stream) {
  for (int64_t row = 0; row < params.rows;) {
    const int64_t left = params.rows - row, group = group_of(params.path, left);
    ProductParams part = params;
    part.rows = left < group ? left : group;
    part.x = at(params.x, row * params.k, params.type);
    part.residual = at(params.residual, row * params.n, params.type);
    part.out = at(params.out, row * params.n, params.out_type);
    run_group(part, group, cuda_stream(stream));
    row += part.rows;
  }
}

uint64_t product_workspace_bytes() { return kProductWorkspaceBytes; }

// The buffers of the check in product_plan.cc: a group of x and of out, two rows of out, a counter.
uint64_t product_check_bytes(const ProductParams& params) {
  const uint64_t group = static_cast<uint64_t>(group_of(params.path, params.rows));
  const uint64_t x_row = static_cast<uint64_t>(params.k) * dtype_bytes(params.type);
  const uint64_t out_row = static_cast<uint64_t>(params.n) * dtype_bytes(params.out_type);
  return whole_pages(group * x_row) + whole_pages(group * out_row) + 2 * whole_pages(out_row) + kPageBytes;
}

}  // namespace headrace::kernels::cuda
