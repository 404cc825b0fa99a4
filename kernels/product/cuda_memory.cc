#include "kernels/product/cuda_memory.h"

#include <algorithm>

#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {
namespace {

constexpr int64_t kPrefillGroups[] = {2048, 512};  // then groups of kProductRowPadding

}  // namespace

int64_t product_group(ProductPath path, int64_t rows_left) {
  if (path == ProductPath::kPrefill) {
    for (const int64_t group : kPrefillGroups) {
      if (rows_left >= group) return group;
    }
  }
  return kProductRowPadding;
}

uint64_t product_workspace_bytes(Stream& stream) {
  return cuda_stream(stream).attachment() ? 0 : kProductWorkspaceBytes + kProductSumsBytes + kProductArrivedBytes;
}

// Buffers of the check in kernels/product/cuda_plan.cc: a group of x and of out, two rows of out, a counter.
uint64_t product_check_bytes(const ProductParams& params) {
  if (params.weight.count > 0 && !params.weight.plain()) return 0;  // cuBLASLt is not used
  const uint64_t group = static_cast<uint64_t>(product_group(params.path, params.rows));
  const uint64_t x_row = static_cast<uint64_t>(params.k) * dtype_bytes(params.type);
  const uint64_t out_row = static_cast<uint64_t>(params.n) * dtype_bytes(params.out_type);
  const uint64_t sums_row = static_cast<uint64_t>(params.n) * sizeof(float);
  return whole_pages(group * x_row) +
         whole_pages(std::max(group * out_row, std::min(group * sums_row, kProductSumsBytes))) +
         2 * whole_pages(sums_row) + kPageBytes;
}

}  // namespace headrace::kernels::cuda
