// The bodies of kernels/chunks/op.h: a call of score_chunks() is a chunk_states() for each run of chunks, then a
// chunk_scores(). Internal to the op.
#pragma once

#include "kernels/chunks/op.h"
#include "kernels/cuda/bodies.h"

namespace headrace::kernels {

// A call without its segments, and what is in its workspace.
struct ChunkScoresParams {
  ScoreChunksParams call;
  int64_t chunks;
  void* rotated_q;  // [heads, head_dim] of call.type, for int4: not on the CPU
  float* states;    // [heads, chunks, 2]: the largest score m of a chunk's rows, and l = sum of exp(score - m)
  float* totals;    // [heads, 2]: the same of all rows
};

// Chunks [first, first + count) and the segments that hold their rows, in order.
struct ChunkStatesParams {
  ChunkScoresParams all;
  int64_t first, count, segment_count;
  KvSegment segments[kMaxPrefixSegments];
};

HEADRACE_BODIES(chunk_states, ChunkStatesParams)
HEADRACE_BODIES(chunk_scores, ChunkScoresParams)

}  // namespace headrace::kernels
