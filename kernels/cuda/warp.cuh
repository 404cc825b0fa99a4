// Sums and maxima over the lanes of a warp: in every lane, in an order that is part of a row's bits. All 32 lanes call
// them. Device code, internal to kernels/.
#pragma once

namespace headrace::kernels::cuda {

constexpr unsigned kAllLanes = 0xffffffff;

// By halves: lanes 16 apart first. `combine` of two values does not depend on which comes first.
template <typename T, typename Combine>
__device__ inline T warp_reduce(T value, const Combine& combine) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value = combine(value, __shfl_xor_sync(kAllLanes, value, apart));
  return value;
}
__device__ inline float warp_sum(float value) {
  return warp_reduce(value, [](float a, float b) { return __fadd_rn(a, b); });
}
__device__ inline double warp_sum(double value) {
  return warp_reduce(value, [](double a, double b) { return a + b; });
}
__device__ inline float warp_max(float value) {
  return warp_reduce(value, [](float a, float b) { return fmaxf(a, b); });
}

// Over four lanes that follow one another, which hold a row of a tensor core's fragment: neighbours first.
__device__ inline float quad_sum(float value) {
  value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, 1));
  return __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, 2));
}
__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

}  // namespace headrace::kernels::cuda
