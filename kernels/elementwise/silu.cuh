// The activation, for each kernel that has gate and up. Device code.
#pragma once

#include "kernels/elementwise/activation.h"

namespace headrace::kernels::cuda {

// silu(gate) * up. The intrinsics keep the compiler from joining a product and a sum.
__device__ inline float silu_times(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(expf(-gate), 1.0f)), up);
}

__device__ inline float gelu_times(float gate, float up) {
  const float t = __fmul_rn(gate, fmaf(__fmul_rn(gate, gate), kGeluCubic, kGeluLinear));
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(expf(-t), 1.0f)), up);
}

__device__ inline float clamped_times(float gate, float up) {
  const float g = gate > kClampedMost ? kClampedMost : gate;
  const float u = up > kClampedMost ? kClampedMost : up < -kClampedMost ? -kClampedMost : up;
  const float t = __fmul_rn(kClampedSlope, g);
  return __fmul_rn(__fdiv_rn(g, __fadd_rn(expf(-t), 1.0f)), __fadd_rn(u, 1.0f));
}

__device__ inline float activated_times(Activation activation, float gate, float up) {
  return activation == Activation::kSilu   ? silu_times(gate, up)
         : activation == Activation::kGelu ? gelu_times(gate, up)
                                           : clamped_times(gate, up);
}

}  // namespace headrace::kernels::cuda
