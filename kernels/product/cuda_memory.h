// What products take on a GPU, in every build: a plan for a card may be made where there is no CUDA. Pure numbers, but
// for what a stream has already. Any thread.
#pragma once

#include "kernels/product/op.h"

namespace headrace::kernels::cuda {

// A stream's: cuBLASLt's own, and sums in fp32 that a kernel of ours ends.
constexpr uint64_t kProductWorkspaceBytes = 32 * kMiB, kProductSumsBytes = 32 * kMiB;

// Rows of the group that the next of `rows_left` rows are multiplied in (docs/design.md, section 6, rule 1).
int64_t product_group(ProductPath path, int64_t rows_left);

uint64_t product_workspace_bytes(Stream& stream);  // REQUIRES: a CUDA stream
uint64_t product_check_bytes(const ProductParams& params);

}  // namespace headrace::kernels::cuda
