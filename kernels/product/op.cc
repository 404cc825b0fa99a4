#include "kernels/product/op.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/elementwise/op.h"
#include "kernels/product/bodies.h"
#include "kernels/product/cuda_memory.h"

namespace headrace {

namespace {

void check(const ProductParams& params) {
  CHECK(params.rows >= 0 && params.n > 0 && params.k > 0, "rows=", params.rows, " n=", params.n, " k=", params.k);
  CHECK(params.out_type == params.type || params.out_type == DType::kF32, "out_type=", dtype_name(params.out_type),
        " type=", dtype_name(params.type));
  CHECK(params.x != nullptr && params.out != nullptr && params.out != params.x);
  CHECK(params.weight.rows() == params.n && params.weight.cols == params.k, "a weight of ", params.weight.rows(), " x ",
        params.weight.cols, " in a product of n=", params.n, " k=", params.k);
  const InputNorm& norm = params.norm;
  CHECK(norm.weight == nullptr || (norm.room != nullptr && norm.room != params.out &&
                                   (norm.x_type == params.type || norm.x_type == DType::kF32)),
        "x of type ", dtype_name(norm.x_type), " in a product of type ", dtype_name(params.type));
  for (int i = 0; i < params.weight.count; ++i) {
    const WeightPart& part = params.weight.parts[i];
    CHECK(part.data != nullptr && (!is_plain(part.type) || part.type == plain_weight_type(params.type)), "part ", i,
          " of type ", weight_type_info(part.type).name, " in a product of type ", dtype_name(params.type));
  }
}

void check(const GroupedProductParams& params, Backend backend) {
  CHECK(params.rows >= 0 && params.groups > 0 && params.n > 0 && params.k > 0 && params.most_rows <= params.rows,
        "rows=", params.rows, " groups=", params.groups, " n=", params.n, " k=", params.k);
  CHECK(params.out_type == params.type || params.out_type == DType::kF32, "out_type=", dtype_name(params.out_type),
        " type=", dtype_name(params.type));
  CHECK(params.x != nullptr && params.out != nullptr && params.begin != nullptr && params.out != params.x);
  CHECK(params.weight.rows() == params.n && params.weight.cols == params.k, "a weight of ", params.weight.rows(), " x ",
        params.weight.cols, " in a product of n=", params.n, " k=", params.k);
  CHECK(params.from == nullptr || params.x_rows > 0, "x_rows=", params.x_rows);
  CHECK(params.from == nullptr || backend == Backend::kCuda ||
        (params.room != nullptr && params.room != params.x && params.room != params.out));
}

// Normalises x if the product's kernel does not do so itself, and returns the call that remains.
ProductParams normalise_input(const ProductParams& params, Stream& stream) {
  if (params.norm.weight == nullptr) return params;
  if (stream.backend() == Backend::kCuda && kernels::cuda::normalises_input(params)) return params;
  rms_norm({.x = params.x,
            .weight = params.norm.weight,
            .out = params.norm.room,
            .x_type = params.norm.x_type,
            .type = params.type,
            .rows = params.rows,
            .cols = params.k,
            .x_stride = params.k,
            .out_stride = params.k,
            .eps = params.norm.eps},
           stream);
  ProductParams rest = params;
  rest.x = params.norm.room;
  rest.norm = {};
  return rest;
}

// activated = activation(gate) * up of params.out.
template <typename Params>
void activate_halves(const Params& params, void* activated, Stream& stream) {
  silu_mul({.gate_up = params.out,
            .out = activated,
            .type = params.type,
            .rows = params.rows,
            .cols = params.n / 2,
            .activation = params.activation},
           stream);
}

}  // namespace

void product(const ProductParams& params, Stream& stream) {
  check(params);
  if (params.rows == 0) return;
  kernels::dispatch(kernels::cpu::product, kernels::cuda::product, normalise_input(params, stream), stream);
}

void gated_product(const ProductParams& params, void* activated, Stream& stream) {
  check(params);
  CHECK(params.n % 2 == 0 && params.bias == nullptr && params.residual == nullptr && params.out_type == params.type &&
            activated != nullptr && activated != params.x,
        "n=", params.n);
  if (params.rows == 0) return;
  const ProductParams rest = normalise_input(params, stream);
  if (stream.backend() == Backend::kCuda && kernels::cuda::gated_product(rest, activated, stream)) return;
  product(rest, stream);
  activate_halves(params, activated, stream);
}

void rotated_product(const ProductParams& params, const RopeParams& turn, Stream& stream) {
  check(params);
  CHECK(turn.q == params.out && turn.rows == params.rows && turn.qkv_stride == params.n && turn.type == params.type &&
            (turn.heads + 2 * turn.kv_heads) * turn.head_dim == params.n,
        "heads=", turn.heads, " + 2 x ", turn.kv_heads, " head_dim=", turn.head_dim, " n=", params.n);
  CHECK(params.residual == nullptr && params.out_type == params.type);
  if (params.rows == 0) return;
  const ProductParams rest = normalise_input(params, stream);
  if (stream.backend() == Backend::kCuda && kernels::cuda::rotated_product(rest, turn, stream)) return;
  product(rest, stream);
  rope(turn, stream);
}

void grouped_product(const GroupedProductParams& params, Stream& stream) {
  check(params, stream.backend());
  if (params.rows == 0) return;
  kernels::dispatch(kernels::cpu::grouped_product, kernels::cuda::grouped_product, params, stream);
}

void grouped_gated_product(const GroupedProductParams& params, void* activated, Stream& stream) {
  check(params, stream.backend());
  CHECK(params.n % 2 == 0 && params.out_type == params.type && activated != nullptr && activated != params.x &&
            activated != params.out,
        "n=", params.n, " out_type=", dtype_name(params.out_type));
  if (params.rows == 0) return;
  if (stream.backend() == Backend::kCuda && kernels::cuda::grouped_gated_product(params, activated, stream)) return;
  grouped_product(params, stream);
  activate_halves(params, activated, stream);
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

uint64_t product_kind_bytes(const ProductPlace& place, const ProductParams& params) {
  if (place.backend == Backend::kCuda) return kernels::cuda::product_check_bytes(params);
  if (place.unpacking_threads == 0) return 0;
  return static_cast<uint64_t>(place.unpacking_threads) * kernels::cpu::product_thread_bytes(params);
}

}  // namespace headrace
