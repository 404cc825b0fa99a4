// Queries of bf16 for rows of f16. Tensor cores multiply elements of one type, and the rows must keep their values. So
// a row of q is converted: it is multiplied by the power of two that brings its largest magnitude to [2^14, 2^15), and
// rounded to f16; scores are multiplied by the inverse. f16 has three bits more than bf16, so the conversion is exact
// for all elements down to 2^-31 of the row's largest, and smaller ones err by at most 2^-39 of it. A row's factor
// depends on that row alone. Device code, internal to kernels/attention.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/op.h"
#include "kernels/cuda/instructions.cuh"

namespace headrace::kernels::cuda {

// Whether q, of type Q, is converted for rows of type T.
template <typename Q, typename T>
constexpr bool kCasts = !std::is_same_v<Q, T>;

inline bool has_tensor_rows(const AttentionShape& shape) {
  return has_tensor_rows(shape.type, shape.k_type, shape.v_type);
}

// The larger of a magnitude and those of two elements, as bits.
__device__ inline int larger(int most, uint32_t pair) {
  return max(most, max(static_cast<int>(pair & 0x7fff), static_cast<int>(pair >> 16 & 0x7fff)));
}

// Over four lanes that follow one another, which hold a row.
__device__ inline int largest_of_quad(int most) {
  most = max(most, __shfl_xor_sync(~0u, most, 1));
  return max(most, __shfl_xor_sync(~0u, most, 2));
}

struct CastFactors {
  float up, down;  // of q; of its scores
};
// `largest`: of the row's magnitudes. Both factors are normal numbers, also for a row of zeros or with a NaN.
__device__ inline CastFactors cast_factors(int largest) {
  const int exponent = min(max(largest >> 7, 15), 254);
  return {__int_as_float((268 - exponent) << 23), __int_as_float((exponent - 14) << 23)};
}
__device__ inline uint32_t cast_pair(uint32_t pair, float up) {
  return pack(__fmul_rn(__uint_as_float(pair << 16), up), __fmul_rn(__uint_as_float(pair & 0xffff0000), up), __half{});
}

}  // namespace headrace::kernels::cuda
