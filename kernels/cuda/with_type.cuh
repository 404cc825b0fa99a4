// Host code, internal to kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cache/base.h"

namespace headrace::kernels::cuda {

// Calls `body` with a value of the C++ type of exact rows.
template <typename Body>
void with_type(DType type, const Body& body) {
  if (type == DType::kF32) body(float());
  if (type == DType::kF16) body(__half());
  if (type == DType::kBF16) body(__nv_bfloat16());
}

}  // namespace headrace::kernels::cuda
