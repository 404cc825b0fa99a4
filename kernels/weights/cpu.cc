#include <algorithm>
#include <cstring>

#include "kernels/weights/bodies.h"
#include "kernels/weights/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {
namespace {

constexpr int64_t kRunBytes = 32 * 1024;  // of the output, which one call of a pool's body writes

void widen_row(const void* from, DType type, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = type == DType::kF16 ? f16_to_f32(static_cast<const f16*>(from)[i])
                                 : bf16_to_f32(static_cast<const bf16*>(from)[i]);
  }
}

void dequantise_row(const DequantiseParams& params, const WeightKernels& kernels, int64_t row, std::byte* out) {
  const WeightPart* part = params.weight.parts;
  for (; row >= part->rows; ++part) row -= part->rows;
  const WeightTypeInfo& info = weight_type_info(part->type);
  const int64_t blocks = params.weight.cols / info.block_elements;
  const std::byte* const from = static_cast<const std::byte*>(part->data) + row * blocks * info.block_bytes;
  if (!is_plain(part->type)) {
    kernels.unpack(part->type, from, blocks, params.type, params.out_type, out);
  } else if (params.out_type == params.type) {
    std::memcpy(out, from, static_cast<size_t>(blocks * info.block_bytes));
  } else {
    widen_row(from, params.type, params.weight.cols, reinterpret_cast<float*>(out));
  }
}

}  // namespace

void store_weight(const StoreWeightParams& params, ThreadPool&) {
  std::memcpy(static_cast<std::byte*>(params.out) + weight_bytes(params.type, params.row_begin, params.cols),
              params.blocks, weight_bytes(params.type, params.row_end - params.row_begin, params.cols));
}

void dequantise(const DequantiseParams& params, ThreadPool& pool) {
  const WeightKernels& kernels = HEADRACE_PICK_ISA(weight_kernels);
  const int64_t row_bytes = params.weight.cols * static_cast<int64_t>(dtype_bytes(params.out_type));
  const int64_t run = std::max<int64_t>(1, kRunBytes / row_bytes);
  pool.parallel_for(ceil_div(params.rows, run), [&](int64_t index, int) {
    const int64_t end = std::min(params.rows, (index + 1) * run);
    for (int64_t i = index * run; i < end; ++i) {
      const int64_t row = params.ids != nullptr ? params.ids[i] : params.first_row + i;
      CHECK(0 <= row && row < params.weight.rows(), "row ", row, " of ", params.weight.rows());
      dequantise_row(params, kernels, row, static_cast<std::byte*>(params.out) + i * row_bytes);
    }
  });
}

}  // namespace headrace::kernels::cpu
