#include "kernels/cpu/product.h"

#include <algorithm>

#include "kernels/cpu/product_isa.h"

namespace headrace::kernels::cpu {

namespace {

constexpr int64_t kMaxPartBytes = 192 * 1024;  // of w: stays in the second-level cache while the rows pass
constexpr int64_t kPartsPerThread = 4;         // so that a thread that lost time does not hold up the rest

// Columns a part: how the work is cut never changes a bit.
int64_t cols_per_part(const ProductParams& params, int64_t tile_cols, int threads) {
  if (threads == 1 && params.rows == 1) return params.n;
  const int64_t row_bytes = params.k * static_cast<int64_t>(dtype_bytes(params.type));
  const int64_t fair = ceil_div(params.n, threads * kPartsPerThread);
  const int64_t cols = std::min(fair, kMaxPartBytes / row_bytes);
  return ceil_div(std::max<int64_t>(cols, 1), tile_cols) * tile_cols;
}

}  // namespace

void product(const ProductParams& params, ThreadPool& pool) {
  const ProductKernels& kernels = HEADRACE_PICK_ISA(product_kernels);
  const int64_t cols = cols_per_part(params, kernels.tile_cols, pool.threads());
  pool.parallel_for(ceil_div(params.n, cols), [&](int64_t index, int) {
    ProductPart part{};
    part.x = params.x;
    part.w = params.w;
    part.bias = params.bias;
    part.residual = params.residual;
    part.out = params.out;
    part.n = params.n;
    part.k = params.k;
    part.row_begin = 0;
    part.row_end = params.rows;
    part.col_begin = index * cols;
    part.col_end = std::min(params.n, part.col_begin + cols);
    part.type = params.type;
    part.out_type = params.out_type;
    kernels.part(part);
  });
}

}  // namespace headrace::kernels::cpu
