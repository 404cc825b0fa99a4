#include "kernels/int8/grouped.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/int8/bodies.h"
#include "kernels/int8/layout.h"

namespace headrace {

namespace {

void check_groups(const Int8Groups& groups) {
  CHECK(groups.count > 0 && groups.count <= kMaxInt8Groups && groups.first != nullptr && groups.end != nullptr,
        "groups=", groups.count);
}

}  // namespace

int64_t int8_group_rows(Backend backend, int64_t pairs, int64_t groups) {
  CHECK(pairs >= 0 && groups > 0, "pairs=", pairs, " groups=", groups);
  if (backend == Backend::kCpu) return pairs;
  return pairs + std::min(pairs, groups) * (kernels::cuda::kFragmentRows - 1);
}

uint64_t int8_group_rows_bytes(Backend backend, int64_t rows, int64_t cols) {
  return int8_values_bytes(backend, backend == Backend::kCpu ? rows : rows + kernels::cuda::kMostTileRows, cols);
}

uint64_t int8_group_values_bytes(Backend backend, int64_t groups, int64_t n, int64_t k) {
  return static_cast<uint64_t>(groups) * int8_values_bytes(backend, n, k);
}

int64_t int8_group_tiles(Backend backend, int64_t rows, int64_t groups) {
  if (backend == Backend::kCpu) return 0;
  return 2 * (1 + ceil_div(rows, kernels::cuda::kLeastTileRows) + groups);
}

void int8_spread(const Int8SpreadParams& params, Stream& stream) {
  check_groups(params.groups);
  CHECK(params.rows >= 0 && params.used > 0 && params.cols > 0 && params.cols <= kMaxInt8Cols, "rows=", params.rows,
        " used=", params.used, " cols=", params.cols);
  CHECK(params.chosen != nullptr && params.begin != nullptr && params.places != nullptr);
  if (params.rows == 0) return;
  kernels::dispatch(kernels::cpu::int8_spread, kernels::cuda::int8_spread, params, stream);
}

void int8_grouped_product(const Int8GroupedProductParams& params, Stream& stream) {
  check_groups(params.groups);
  CHECK(params.out != nullptr && params.rows >= 0 && params.n > 0 && params.k > 0 && params.k <= kMaxInt8Cols &&
            !low_bit(params.type),
        "rows=", params.rows, " n=", params.n, " k=", params.k);
  if (params.rows == 0) return;
  kernels::dispatch(kernels::cpu::int8_grouped_product, kernels::cuda::int8_grouped_product, params, stream);
}

}  // namespace headrace
