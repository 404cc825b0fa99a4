// The formats of kernels/rows/op.h, written plainly and in doubles: what the kernels are compared with. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/base.h"

namespace headrace::testing_support {

// A plane of `type` (int8 or int4) from values [kv_heads * rows][head_dim].
std::vector<std::byte> low_bit_plane(const std::vector<float>& values, DType type, int64_t head_dim);
// The values of such a plane; those of int4 are rotated back.
std::vector<float> low_bit_values(const std::vector<std::byte>& plane, DType type, int64_t head_dim);

// Multiplies by the orthonormal Hadamard matrix.
std::vector<double> rotate(const std::vector<double>& row);

}  // namespace headrace::testing_support
