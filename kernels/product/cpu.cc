#include "kernels/product/cpu.h"

#include <algorithm>

#include "kernels/product/cpu_isa.h"

namespace headrace::kernels::cpu {

namespace {

// Of w, in a part: stays in the second-level cache while many rows pass; else small enough to share out evenly.
constexpr int64_t kManyRows = 24;
constexpr int64_t kPartBytesOfManyRows = 192 * 1024;
constexpr int64_t kPartBytesOfFewRows = 1024 * 1024;
constexpr int64_t kPartsPerThread = 4;  // so that a thread that lost time does not hold up the rest

// Columns a part: how the work is cut never changes a bit.
int64_t cols_per_part(const ProductParams& params, int64_t tile_cols, int threads) {
  const int64_t row_bytes = params.k * static_cast<int64_t>(dtype_bytes(params.type));
  const int64_t most = (params.rows > kManyRows ? kPartBytesOfManyRows : kPartBytesOfFewRows) / row_bytes;
  const int64_t fair = ceil_div(params.n, threads == 1 ? 1 : threads * kPartsPerThread);
  return ceil_div(std::max<int64_t>(std::min(fair, most), 1), tile_cols) * tile_cols;
}

}  // namespace

void product(const ProductParams& params, ThreadPool& pool) {
  const ProductKernels& kernels = HEADRACE_PICK_ISA(product_kernels);
  const int64_t cols = cols_per_part(params, kernels.tile_cols, pool.threads());
  pool.parallel_for(ceil_div(params.n, cols), [&](int64_t index, int) {
    ProductPart part{};
    part.x = params.x;
    part.w = params.weight.parts[0].data;
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
