// The vectorised parts of Gated DeltaNet, one table per instruction set (isa.h). Serial; any thread. Each uses at most
// about 200 KiB of the caller's stack. The params are those of kernels/recurrence/op.h, already checked.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/recurrence/op.h"

namespace headrace::kernels {

// Columns of a value head's state that one call computes: at most table.columns from first_column on.
struct DeltaSlice {
  int64_t head, first_column;
};

struct RecurrenceKernels {
  int64_t columns;
  // out[c] = silu(sum over u of weight[c, u] m[u][c]).
  void (*convolve)(DType type, const void* const* m, const float* weight, float* out, int64_t channels);
  // x = x / sqrt(sum of x^2 + 1e-6) * scale, in place.
  void (*normalise)(float* x, int64_t dim, float scale);
  void (*walk)(const DeltaRecurrenceParams& params, const DeltaSlice& slice);
  void (*commit)(const DeltaCommitParams& params, int64_t layer, const DeltaSlice& slice);
  void (*output)(const DeltaOutputParams& params, int64_t row);
};
HEADRACE_DECLARE_ISA(RecurrenceKernels, recurrence_kernels)

struct DeltaChunkKernels {
  // Writes the two matrices of a chunk and head to the scratch.
  void (*matrices)(const DeltaChunksParams& params, int64_t chunk, int64_t head);
  // Walks the chunks, then the remainder.
  void (*walk)(const DeltaChunksParams& params, const DeltaSlice& slice);
};
HEADRACE_DECLARE_ISA(DeltaChunkKernels, delta_chunk_kernels)

}  // namespace headrace::kernels
