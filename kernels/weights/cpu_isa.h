// From blocks to weights and back, tables of an instruction set (kernels/cpu/isa.h). Serial; any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/weights/type.h"

namespace headrace::kernels {

struct WeightKernels {
  // `count` blocks of a quantised type as values of `rounded`, written as type `to`: `rounded` itself, or kF32, which
  // holds the same values.
  void (*unpack)(WeightType type, const void* blocks, int64_t count, DType rounded, DType to, void* out);
};
HEADRACE_DECLARE_ISA(WeightKernels, weight_kernels)

struct QuantiseKernels {  // of quantise_isa.cc
  void (*quantise)(WeightType type, const float* values, int64_t count, void* blocks);
};
HEADRACE_DECLARE_ISA(QuantiseKernels, quantise_kernels)

}  // namespace headrace::kernels
