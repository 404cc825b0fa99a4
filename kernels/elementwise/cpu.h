// The CPU bodies of kernels/elementwise/op.h: the truth that other backends are tested against. Called on a compute
// stream's thread, with its pool.
#pragma once

#include "kernels/elementwise/op.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void embedding(const EmbeddingParams& params, ThreadPool& pool);
void rms_norm(const RmsNormParams& params, ThreadPool& pool);
void rope(const RopeParams& params, ThreadPool& pool);
void rope_table(const RopeTableParams& params, ThreadPool& pool);
void silu_mul(const SiluMulParams& params, ThreadPool& pool);
void commit_rows(const CommitParams& params, ThreadPool& pool);
void fill_ring(const FillRingParams& params, ThreadPool& pool);

}  // namespace headrace::kernels::cpu
