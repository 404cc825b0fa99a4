// The bodies of kernels/experts/op.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/experts/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(route, RouteParams)
HEADRACE_BODIES(list_pairs, ListPairsParams)
HEADRACE_BODIES(add_experts, AddExpertsParams)

namespace cuda {
// In one launch. False: it cannot, and nothing was enqueued.
#ifdef HEADRACE_NO_CUDA_BODIES
inline bool choose_experts(const RouteParams&, const ListPairsParams&, Stream&) { no_body("choose_experts"); }
inline bool router_takes(const RouterParams&) { no_body("router"); }
inline bool router_normalises(const RouterParams&) { no_body("router"); }
inline void router(const RouterParams&, Stream&) { no_body("router"); }
#else
bool choose_experts(const RouteParams& routes, const ListPairsParams& lists, Stream& stream);
bool router_takes(const RouterParams& params);       // whether router() computes such scores
bool router_normalises(const RouterParams& params);  // and `normed`; otherwise router() reads it
void router(const RouterParams& params, Stream& stream);
#endif
}  // namespace cuda

}  // namespace headrace::kernels
