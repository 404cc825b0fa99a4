#include "kernels/product/packed.h"

namespace headrace::kernels::cuda {

namespace {

// A matrix with more outputs than this fills a GPU without dividing k.
constexpr int64_t kMostColsInFour = 16384;

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

bool takes(const ProductParams& params) {
  bool takes = params.type == DType::kBF16 && params.k % 8 == 0 && aligned(params.x);
  takes = takes && params.rows <= INT32_MAX && params.n <= INT32_MAX && params.k <= INT32_MAX;
  for (int i = 0; i < params.weight.count; ++i) takes = takes && aligned(params.weight.parts[i].data);
  return takes;
}

}  // namespace

bool packed_product(const ProductParams& params, CudaStream& stream) {
  if (!takes(params)) return false;
  PackedProduct p{};
  int col = 0;
  for (int i = 0; i < params.weight.count; ++i) {
    const WeightPart& part = params.weight.parts[i];
    const int rows = static_cast<int>(part.rows);
    p.parts[i] = {.data = part.data, .type = part.type, .rows = rows, .first_block = 0, .first_col = col};
    col += rows;
  }
  p.part_count = params.weight.count;
  p.x = params.x;
  p.bias = params.bias;
  p.residual = params.residual;
  p.out = params.out;
  p.out_f32 = params.out_type == DType::kF32;
  p.rows = static_cast<int>(params.rows);
  p.n = static_cast<int>(params.n);
  p.k = static_cast<int>(params.k);
  if (params.n > kMostColsInFour) {
    packed_product_in_one(p, stream);
  } else {
    packed_product_in_four(p, stream);
  }
  return true;
}

}  // namespace headrace::kernels::cuda
