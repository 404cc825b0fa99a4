#include "kernels/experts/op.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/experts/bodies.h"

namespace headrace {

using kernels::dispatch;

void route(const RouteParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.used > 0 && params.used <= params.count && params.used <= kMaxUsedExperts &&
            params.count <= kMaxExperts,
        "rows=", params.rows, " count=", params.count, " used=", params.used);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::route, kernels::cuda::route, params, stream);
}

void list_pairs(const ListPairsParams& params, Stream& stream) {
  CHECK(params.pairs >= 0 && params.pairs <= INT32_MAX && params.count > 0 && params.count <= kMaxExperts &&
            params.used > 0,
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

void spread_rows(const SpreadRowsParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.used > 0 && params.cols > 0, "rows=", params.rows, " used=", params.used,
        " cols=", params.cols);
  CHECK(params.x != params.out);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::spread_rows, kernels::cuda::spread_rows, params, stream);
}

void add_experts(const AddExpertsParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.used > 0 && params.cols > 0, "rows=", params.rows, " used=", params.used,
        " cols=", params.cols);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::add_experts, kernels::cuda::add_experts, params, stream);
}

}  // namespace headrace
