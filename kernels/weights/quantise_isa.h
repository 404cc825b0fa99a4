// From weights to blocks, one table an instruction set (kernels/cpu/isa.h). Serial; any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/weights/type.h"

namespace headrace::kernels {

struct QuantiseKernels {
  void (*quantise)(WeightType type, const float* values, int64_t count, void* blocks);
};
HEADRACE_DECLARE_ISA(QuantiseKernels, quantise_kernels)

}  // namespace headrace::kernels
