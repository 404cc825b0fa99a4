#include "kernels/int8/op.h"

#include <cmath>

#include "kernels/cpu/dispatch.h"
#include "kernels/int8/bodies.h"
#include "kernels/int8/layout.h"

namespace headrace {

namespace {

void check_rows(const Int8Rows& rows, int64_t cols) {
  CHECK(cols > 0 && cols <= kMaxInt8Cols, "cols=", cols);
  CHECK(rows.values != nullptr && rows.scales != nullptr && reinterpret_cast<uintptr_t>(rows.values) % 64 == 0);
}

}  // namespace

uint64_t int8_values_bytes(Backend backend, int64_t rows, int64_t cols) {
  CHECK(rows >= 0 && cols > 0, rows, " x ", cols);
  const int64_t padded = kernels::padded_int8_cols(cols);
  if (backend == Backend::kCpu) {
    return static_cast<uint64_t>(ceil_div(rows, kernels::cpu::kPanelRows) * kernels::cpu::panel_bytes(padded));
  }
  return round_up(static_cast<uint64_t>(rows), kernels::cuda::kInt8RowPadding) * static_cast<uint64_t>(padded);
}

uint64_t int8_thread_bytes(Backend backend, int64_t cols) {
  return backend == Backend::kCpu ? kernels::cpu::int8_thread_bytes(cols) : 0;
}

void int8_weight(const Int8WeightParams& params, Stream& stream) {
  const Weight& weight = params.weight;
  check_rows(params.out, weight.cols);
  CHECK(weight.count > 0 && weight.rows() > 0 && !low_bit(params.type), dtype_name(params.type));
  CHECK(params.groups > 0 && params.groups <= INT16_MAX, "groups=", params.groups);
  for (int i = 0; i < weight.count; ++i) {
    const WeightPart& part = weight.parts[i];
    CHECK(part.data != nullptr && (!is_plain(part.type) || part.type == plain_weight_type(params.type)),
          "a part of type ", weight_type_info(part.type).name, " as ", dtype_name(params.type));
    CHECK(weight.cols % weight_type_info(part.type).block_elements == 0, "cols=", weight.cols);
  }
  kernels::dispatch(kernels::cpu::int8_weight, kernels::cuda::int8_weight, params, stream);
}

void int8_activation(const Int8ActivationParams& params, Stream& stream) {
  check_rows(params.out, params.cols);
  CHECK(params.x != nullptr && params.rows >= 0 && !low_bit(params.type), "rows=", params.rows);
  CHECK((params.input == Int8Input::kNormed) == (params.norm != nullptr) && std::isfinite(params.eps));
  if (params.rows == 0) return;
  kernels::dispatch(kernels::cpu::int8_activation, kernels::cuda::int8_activation, params, stream);
}

void int8_product(const Int8ProductParams& params, Stream& stream) {
  check_rows(params.x, params.k);
  check_rows(params.weight, params.k);
  CHECK(params.out != nullptr && params.rows >= 0 && params.n > 0 && !low_bit(params.type), "rows=", params.rows,
        " n=", params.n);
  if (params.rows == 0) return;
  kernels::dispatch(kernels::cpu::int8_product, kernels::cuda::int8_product, params, stream);
}

}  // namespace headrace
