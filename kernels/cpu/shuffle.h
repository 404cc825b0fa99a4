// Moves between lanes, for *_isa.cc sources with simd.h. Pure; everything is in the set's own namespace.
#pragma once

#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

typedef uint64_t vq __attribute__((vector_size(kLanes * 4)));

// The lower (upper) halves of a and b, interleaved: a0 b0 a1 b1 …
#if defined(__AVX512F__)
HEADRACE_SIMD vf zip_low(vf a, vf b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
HEADRACE_SIMD vf zip_high(vf a, vf b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
HEADRACE_SIMD vq zip_low(vq a, vq b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
HEADRACE_SIMD vq zip_high(vq a, vq b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#elif defined(__AVX2__)
HEADRACE_SIMD vf zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
HEADRACE_SIMD vf zip_high(vf a, vf b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
HEADRACE_SIMD vq zip_low(vq a, vq b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
HEADRACE_SIMD vq zip_high(vq a, vq b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#else
HEADRACE_SIMD vf zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
HEADRACE_SIMD vf zip_high(vf a, vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
HEADRACE_SIMD vq zip_low(vq a, vq b) { return __builtin_shufflevector(a, b, 0, 2); }
HEADRACE_SIMD vq zip_high(vq a, vq b) { return __builtin_shufflevector(a, b, 1, 3); }
#endif

// Transposes a square of kLanes rows: each round zips rows i and i + kLanes / 2.
HEADRACE_SIMD void transpose(vf (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int width = 1; width < kLanes; width *= 2) {
    vf next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = zip_low(rows[i], rows[i + kLanes / 2]);
      next[2 * i + 1] = zip_high(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// Reduces the lanes by halves, in registers: ((l0 + l8) + (l4 + l12)) + … for 16 lanes, the order of simd.h's sum().
#if defined(__AVX512F__)
#define HEADRACE_HALVES(v, apply)                                                                    \
  v = apply(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
  v = apply(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
  v = apply(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
  v = apply(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))
#elif defined(__AVX2__)
#define HEADRACE_HALVES(v, apply)                                      \
  v = apply(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3)); \
  v = apply(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5)); \
  v = apply(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6))
#else
#define HEADRACE_HALVES(v, apply)                          \
  v = apply(v, __builtin_shufflevector(v, v, 2, 3, 0, 1)); \
  v = apply(v, __builtin_shufflevector(v, v, 1, 0, 3, 2))
#endif
HEADRACE_SIMD vf plus(vf a, vf b) { return a + b; }
HEADRACE_SIMD float sum_of_lanes(vf v) {
  HEADRACE_HALVES(v, plus);
  return v[0];
}
HEADRACE_SIMD float largest_lane(vf v) {
  HEADRACE_HALVES(v, max);
  return v[0];
}

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
