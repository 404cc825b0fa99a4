#include "kernels/product/op.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/product/bodies.h"
#include "kernels/product/cuda_memory.h"

namespace headrace {

void product(const ProductParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.n > 0 && params.k > 0, "rows=", params.rows, " n=", params.n, " k=", params.k);
  CHECK(params.out_type == params.type || params.out_type == DType::kF32, "out_type=", dtype_name(params.out_type),
        " type=", dtype_name(params.type));
  CHECK(params.residual == nullptr || params.out_type == params.type, "a residual of type ", dtype_name(params.type),
        " with out_type=", dtype_name(params.out_type));
  CHECK(params.x != nullptr && params.out != nullptr && params.out != params.x);
  CHECK(params.weight.rows() == params.n && params.weight.cols == params.k, "a weight of ", params.weight.rows(), " x ",
        params.weight.cols, " in a product of n=", params.n, " k=", params.k);
  for (int i = 0; i < params.weight.count; ++i) {
    const WeightPart& part = params.weight.parts[i];
    CHECK(part.data != nullptr && (!is_plain(part.type) || part.type == plain_weight_type(params.type)), "part ", i,
          " of type ", weight_type_info(part.type).name, " in a product of type ", dtype_name(params.type));
  }
  if (params.rows == 0) return;
  kernels::dispatch(kernels::cpu::product, kernels::cuda::product, params, stream);
}

uint64_t product_workspace_bytes(Stream& stream) {
  return stream.backend() == Backend::kCpu ? 0 : kernels::cuda::product_workspace_bytes(stream);
}

std::vector<std::string> plain_products(Stream& stream) {
  return stream.backend() == Backend::kCpu ? std::vector<std::string>() : kernels::cuda::plain_products(stream);
}

uint64_t product_library_version(Backend backend) {
  return backend == Backend::kCpu ? 0 : kernels::cuda::product_library_version();
}

uint64_t product_check_bytes(Backend backend, const ProductParams& params) {
  return backend == Backend::kCpu ? 0 : kernels::cuda::product_check_bytes(params);
}

}  // namespace headrace
