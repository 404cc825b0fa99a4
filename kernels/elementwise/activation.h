// The activations that gate a feed-forward part. Plain values.
#pragma once

#include <cstdint>

namespace headrace {

// silu(x) = x sigmoid(x). gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): the form with a tanh,
// 0.5 x (1 + tanh u). The clamped silu of gpt-oss also changes what is gated: with g = min(gate, 7) and u = up within
// -7 and 7, its product is g sigmoid(1.702 g) (u + 1). A NaN stays one.
enum class Activation : uint8_t { kSilu, kGelu, kClampedSilu };
constexpr float kClampedSlope = 1.702f, kClampedMost = 7.0f;

// gelu's 2 u = x (kGeluLinear + kGeluCubic x^2).
constexpr float kGeluLinear = 1.5957691216f, kGeluCubic = 0.0713548162726f;

}  // namespace headrace
