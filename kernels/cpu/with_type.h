// For *_isa.cc sources, beside simd.h.
#pragma once

#include "cache/base.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

// Calls `body` with a value of the C++ type of exact rows.
template <typename Body>
void with_type(DType type, const Body& body) {
  if (type == DType::kF32) body(float());
  if (type == DType::kF16) body(f16());
  if (type == DType::kBF16) body(bf16());
}

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
