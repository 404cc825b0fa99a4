// Chunks of a layer's rows, scored by one query's attention (SpecExtend, arXiv 2505.20776, section 2.2). Chunk c is
// rows [c * chunk_rows, (c + 1) * chunk_rows), the last one may be shorter; all heads share one choice. A choice
// decides what a draft sees: it can change the speed of a run, never its text.
//
// Like the other ops: one params struct of views and a stream; owns nothing, asynchronous; the CPU body is the
// reference. Sums are fp32 in one order on CUDA; CPU and CUDA differ in it, so their choice may differ for chunks with
// nearly equal scores.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/segment.h"
#include "offload/device/stream.h"

namespace headrace {

constexpr int64_t kMaxChunkHeadDim = 256;  // must be even

// The attention of one query over rows [0, rows), without values: with p[h, j] = softmax_j(q[h] . k[j] * scale), a
// chunk's score is the mean of p over the heads and over the chunk's own rows. Query head h reads KV head h / (heads /
// kv_heads). A product that is NaN or +inf makes all scores NaN; one of -inf has no weight.
struct ScoreChunksParams {
  const void* q;              // [heads, head_dim], with RoPE, of `type`
  const KvSegment* segments;  // [segment_count], host memory, read before the call returns. Their v is not read
  void* workspace;            // score_chunks_workspace_bytes(), aligned to 16 bytes
  float* scores;              // [ceil(rows / chunk_rows)], out
  DType type, k_type;         // of q; of the segments' K: any, int8 and int4 too
  int64_t segment_count;      // any number
  int64_t rows, chunk_rows;   // REQUIRES: rows > 0; what the segments have beyond row `rows` is not read
  int64_t heads, kv_heads, head_dim;
  float scale;       // 1 / sqrt(head_dim)
  bool add = false;  // to what `scores` has: the sum over several layers
};
// REQUIRES: the segments follow each other from position 0 and hold `rows` rows or more. A chunk may be in several. q
// and each k are aligned to two elements; on CUDA 16 bytes (8 for int8) are faster.
void score_chunks(const ScoreChunksParams& params, Stream& stream);
// Enough for every call with no more chunks.
uint64_t score_chunks_workspace_bytes(int64_t heads, int64_t head_dim, int64_t chunks);

}  // namespace headrace
