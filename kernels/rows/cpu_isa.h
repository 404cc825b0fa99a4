// The vectorised parts of kernels/rows/op.h, one table per instruction set (isa.h). Serial; any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/rows/op.h"

namespace headrace::kernels {

// Rows that follow each other, exact and stored.
struct RowRun {
  void* exact;  // [count, head_dim], of `type`
  void* values;
  void* parameters;
  DType type, stored;  // stored: low_bit()
  int64_t head_dim, count;
};

struct RowKernels {
  void (*quantise)(const RowRun& run);
  void (*dequantise)(const RowRun& run);  // int8
};
HEADRACE_DECLARE_ISA(RowKernels, row_kernels)

}  // namespace headrace::kernels
