// The vectorised rows of the elementwise ops, one table per instruction set (isa.h). Serial; any thread. The types are
// those of the params structs in kernels/elementwise/op.h.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/cpu/isa.h"
#include "kernels/elementwise/activation.h"

namespace headrace::kernels {

// Of a row: its elements, the weight and the result. in and out: type, or kF32.
struct RowTypes {
  DType in, type, out;
};

struct ElementwiseKernels {
  // One group of cols elements; x may be out if their types are the same. weight: null is 1.
  void (*rms_norm)(const RowTypes& types, const void* x, const void* weight, void* out, int64_t cols, float eps);
  // (residual + that) * factor, in the type of x; out may be residual, but not x.
  void (*add_norm)(const RowTypes& types, const void* x, const void* weight, const void* residual, void* out,
                   int64_t cols, float eps, float factor);
  // One head: x and out have head_dim elements, in may be out; cos_sin [head_dim].
  void (*rotate)(DType in_type, DType out_type, const void* in, const float* cos_sin, void* out, int64_t head_dim);
  // Converts count elements to another type, rounded.
  void (*convert)(DType in_type, DType out_type, const void* in, void* out, int64_t count);
  // activation(gate) * up over cols elements. out_type: type, or kF32.
  void (*silu_mul)(Activation activation, DType type, DType out_type, const void* gate, const void* up, void* out,
                   int64_t cols);
  // y = y sigmoid(gate) over cols elements, in place.
  void (*gate)(DType type, const void* gate, void* y, int64_t cols);
  // x * factor over count elements of x_type, in place, rounded to `type`.
  void (*scale)(DType x_type, DType type, void* x, float factor, int64_t count);
  // cap * tanh(x / cap) over count elements, in place.
  void (*softcap)(float* x, float cap, int64_t count);
  // e^x over count elements: the basis of silu and attention, for its test.
  void (*exp)(const float* in, float* out, int64_t count);
};
HEADRACE_DECLARE_ISA(ElementwiseKernels, elementwise_kernels)

}  // namespace headrace::kernels
