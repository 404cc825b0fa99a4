// How values become int8 (op.h), for *_isa.cc sources: the scale of the largest magnitude, and the rounding. Pure;
// everything is in the set's own namespace.
#pragma once

#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

constexpr float kRoundToInteger = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits

struct Int8Scale {
  float scale, inverse;
  bool zeros;  // every value becomes 0
};

// As integers magnitudes have the same order, above them infinity and then NaN.
HEADRACE_SIMD int32_t magnitude_bits(float value) {
  int32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffff;
}
HEADRACE_SIMD Int8Scale int8_scale(int32_t top_bits) {
  constexpr float kTiny = 0x1p-120f;  // kTinyInt8Row
  float top;
  memcpy(&top, &top_bits, sizeof top);
  if (top_bits >= 0x7f800000) return {__builtin_nanf(""), 0.0f, true};
  if (top < kTiny) return {0.0f, 0.0f, true};
  return {top / 127.0f, 127.0f / top, false};
}
HEADRACE_SIMD int8_t int8_of(float value, const Int8Scale& scale) {
  return scale.zeros ? int8_t{0} : int8_t(int32_t(value * scale.inverse + kRoundToInteger - kRoundToInteger));
}

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
