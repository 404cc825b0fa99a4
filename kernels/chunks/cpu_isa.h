// The vectorised part of kernels/chunks/op.h, one table per instruction set (isa.h). Serial; any thread. The params are
// checked.
#pragma once

#include <cstdint>

#include "kernels/chunks/bodies.h"
#include "kernels/cpu/isa.h"

namespace headrace::kernels {

struct ChunkKernels {
  // The states of chunks [first, first + count) of a call, for the query heads of one KV head.
  void (*states)(const ChunkStatesParams& params, int64_t kv_head, int64_t first, int64_t count);
};
HEADRACE_DECLARE_ISA(ChunkKernels, chunk_kernels)

}  // namespace headrace::kernels
