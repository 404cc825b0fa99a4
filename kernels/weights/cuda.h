// The CUDA bodies of kernels/weights/op.h: launchers. Asynchronous on the stream. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/weights/op.h"

namespace headrace::kernels::cuda {

uint64_t stored_weight_bytes(WeightType type, int64_t rows, int64_t cols);  // of quantised types
void store_weight(const StoreWeightParams& params, Stream& stream);
void dequantise(const DequantiseParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
