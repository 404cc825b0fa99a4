#include "kernels/experts/op.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/elementwise/op.h"
#include "kernels/experts/bodies.h"
#include "kernels/product/op.h"

namespace headrace {

using kernels::dispatch;

namespace {

// In two parts, a GPU multiplies a plain matrix by the kernel of the decode path: a row's scores are the same in every
// pass, whatever groups of rows the library has.
Weight in_two_parts(const RouterParams& params) {
  Weight parts = plain_weight(params.weight, params.type, params.count, params.cols);
  const int64_t upper = params.count / 2;
  parts.count = 2;
  parts.parts[1] = parts.parts[0];
  parts.parts[0].rows = upper;
  parts.parts[1].rows = params.count - upper;
  parts.parts[1].data = static_cast<const std::byte*>(params.weight) +
                        static_cast<uint64_t>(upper * params.cols) * dtype_bytes(params.type);
  return parts;
}

}  // namespace

void router(const RouterParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.count > 1 && params.count <= kMaxScores && params.cols > 0, "rows=", params.rows,
        " count=", params.count, " cols=", params.cols);
  CHECK((params.x_type == params.type || params.x_type == DType::kF32) && params.x != params.normed,
        "x_type=", dtype_name(params.x_type));
  if (params.rows == 0) return;
  const bool own = stream.backend() == Backend::kCuda && kernels::cuda::router_takes(params);
  if (own && kernels::cuda::router_normalises(params)) return kernels::cuda::router(params, stream);
  rms_norm({.x = params.x,
            .weight = params.norm,
            .out = params.normed,
            .x_type = params.x_type,
            .type = params.type,
            .rows = params.rows,
            .cols = params.cols,
            .x_stride = params.cols,
            .out_stride = params.cols,
            .eps = params.eps},
           stream);
  if (own) return kernels::cuda::router(params, stream);
  product({.x = params.normed,
           .weight = in_two_parts(params),
           .bias = params.bias,
           .out = params.scores,
           .type = params.type,
           .out_type = DType::kF32,
           .rows = params.rows,
           .n = params.count,
           .k = params.cols,
           .path = ProductPath::kDecode},
          stream);
}

void route(const RouteParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.used > 0 && params.used <= params.count && params.used <= kMaxUsedExperts &&
            params.count <= kMaxExperts && params.stride >= params.count,
        "rows=", params.rows, " count=", params.count, " used=", params.used, " stride=", params.stride);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::route, kernels::cuda::route, params, stream);
}

void list_pairs(const ListPairsParams& params, Stream& stream) {
  CHECK(params.pairs >= 0 && params.used > 0 && params.all_places() <= INT32_MAX && params.count > 0 &&
            params.count <= kMaxExperts,
        "pairs=", params.pairs, " count=", params.count, " used=", params.used);
  dispatch(kernels::cpu::list_pairs, kernels::cuda::list_pairs, params, stream);
}

void choose_experts(const RouteParams& routes, const ListPairsParams& lists, Stream& stream) {
  CHECK(lists.experts == routes.experts && lists.pairs == routes.rows * routes.used && lists.count == routes.count &&
            lists.used == routes.used,
        "pairs=", lists.pairs, " rows=", routes.rows, " used=", routes.used);
  if (stream.backend() == Backend::kCuda && routes.rows > 0 && kernels::cuda::choose_experts(routes, lists, stream))
    return;
  route(routes, stream);
  list_pairs(lists, stream);
}

void add_experts(const AddExpertsParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.used > 0 && params.cols > 0, "rows=", params.rows, " used=", params.used,
        " cols=", params.cols);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::add_experts, kernels::cuda::add_experts, params, stream);
}

}  // namespace headrace
