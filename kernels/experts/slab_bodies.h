// The bodies of kernels/experts/slab.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/experts/slab.h"

namespace headrace::kernels {

HEADRACE_BODIES(seat_experts, SeatExpertsParams)
HEADRACE_BODIES(fetch_experts, FetchExpertsParams)

}  // namespace headrace::kernels
