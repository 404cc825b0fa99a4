// The vectorised parts of the op, one table per instruction set (kernels/cpu/isa.h). Serial; any thread.
// int8_attention uses about 700 KiB of the caller's stack. The params are those of op.h, already checked.
#pragma once

#include <cstdint>

#include "kernels/attention/cpu_isa.h"
#include "kernels/cpu/isa.h"
#include "kernels/int8_attention/op.h"

namespace headrace::kernels {

struct Int8AttentionKernels {
  void (*centre)(const Int8CentreParams& params, int64_t kv_head);
  // One block: the tile that begins at row `first`.
  void (*kv)(const Int8KvParams& params, int64_t first, int64_t kv_head);
  // All queries of the block have the same own tile.
  void (*attention)(const Int8AttentionParams& params, const AttentionBlock& block);
};
HEADRACE_DECLARE_ISA(Int8AttentionKernels, int8_attention_kernels)

}  // namespace headrace::kernels
