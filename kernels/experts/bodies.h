// The bodies of kernels/experts/op.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/experts/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(route, RouteParams)
HEADRACE_BODIES(list_pairs, ListPairsParams)
HEADRACE_BODIES(spread_rows, SpreadRowsParams)
HEADRACE_BODIES(add_experts, AddExpertsParams)

}  // namespace headrace::kernels
