// The activations that gate a feed-forward part. Plain values.
#pragma once

#include <cstdint>

namespace headrace {

// silu(x) = x sigmoid(x). gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): the form with a tanh,
// 0.5 x (1 + tanh u).
enum class Activation : uint8_t { kSilu, kGelu };

// gelu's 2 u = x (kGeluLinear + kGeluCubic x^2).
constexpr float kGeluLinear = 1.5957691216f, kGeluCubic = 0.0713548162726f;

}  // namespace headrace
