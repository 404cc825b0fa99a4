// The CUDA bodies of kernels/elementwise/op.h: launchers. Asynchronous on the stream. REQUIRES: a CUDA stream.
#pragma once

#include "kernels/elementwise/op.h"

namespace headrace::kernels::cuda {

void embedding(const EmbeddingParams& params, Stream& stream);
void rms_norm(const RmsNormParams& params, Stream& stream);
void rope(const RopeParams& params, Stream& stream);
void rope_table(const RopeTableParams& params, Stream& stream);
void silu_mul(const SiluMulParams& params, Stream& stream);
void commit_rows(const CommitParams& params, Stream& stream);
void fill_ring(const FillRingParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
