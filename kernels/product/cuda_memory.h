// Memory of products on a GPU. Part of every build, because a build without CUDA can plan for a GPU. Pure, except that
// a stream's existing memory counts. Any thread.
#pragma once

#include "kernels/product/op.h"

namespace headrace::kernels::cuda {

// Per stream: cuBLASLt's workspace, fp32 sums that a kernel of ours finishes, and counters of blocks.
constexpr uint64_t kProductWorkspaceBytes = 32 * kMiB, kProductSumsBytes = 32 * kMiB;
constexpr uint64_t kProductArrivedBytes = kPageBytes;

// The group size for the next of `rows_left` rows (docs/design.md, section 6, rule 1).
int64_t product_group(ProductPath path, int64_t rows_left);

uint64_t product_workspace_bytes(Stream& stream);  // REQUIRES: a CUDA stream
uint64_t product_check_bytes(const ProductParams& params);

}  // namespace headrace::kernels::cuda
