// Blocks of kBlockRows rows of the full KV cache: their summaries, the selection of blocks for a partial KV, and their
// copy to it (SpecPV section 3.2; Quest section 3.3). Block b of a layer is rows [b * kBlockRows, (b + 1) * kBlockRows)
// of every KV head; each KV head of each layer selects its own. A summary is the element-wise maximum and minimum of a
// block's keys, in the cache's type. The selection can change the speed of a lossless run, never its text.
//
// Like the other ops: one params struct of views and a stream; owns nothing, asynchronous; the CPU body is the
// reference. Scores are fp32. CPU and CUDA sum them in different orders, so their selection may differ for blocks with
// nearly equal scores.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/segment.h"
#include "offload/device/stream.h"

namespace headrace {

constexpr int64_t kBlockRows = 16;
constexpr int64_t kMaxBlocks = 65536;  // scored by one call: a context of 1 Mi tokens
constexpr int64_t kMaxBlockHeadDim = 512;
static_assert(kPrefixTile % kBlockRows == 0);

// Summarises whole blocks of `layers` layers. Keys come from a ring: position p is row p % ring_rows. A segment is such
// a ring too, because it begins at a multiple of its rows.
struct SummariseBlocksParams {
  const void* k;    // [layers, kv_heads, ring_rows, head_dim], layers k_layer_stride elements apart
  void* summaries;  // [layers, kv_heads, blocks, 2, head_dim]: maximum, then minimum
  DType k_type;
  int64_t layers, kv_heads, head_dim, ring_rows, blocks;
  int64_t k_layer_stride;
  int64_t first_block, count;  // REQUIRES: first_block + count <= blocks, count * kBlockRows <= ring_rows
};
void summarise_blocks(const SummariseBlocksParams& params, Stream& stream);

// The score of a block for one query. kQuest: the sum over the elements of the larger of q * maximum and q * minimum,
// an upper bound for every key of the block. kSpecPv: the larger of the two dot products, as in SpecPV's code.
// kRecent is not scored: a partial KV then keeps the last blocks (StreamingLLM, and the draft of MagicDec).
enum class BlockScore : uint8_t { kQuest, kSpecPv, kRecent };
// How the scores of one head's queries are combined. kLast: the last query's. Then the heads of a group are averaged.
enum class BlockReduce : uint8_t { kMean, kMax, kLast };

// Scores one layer's blocks [first_block, first_block + count) for each KV head. A query element that is not finite
// counts as 0: a wrong candidate must not decide the order of all blocks. REQUIRES: count <= kMaxBlocks.
struct ScoreBlocksParams {
  const void* q;          // [queries, heads, head_dim], rotated, rows q_stride elements apart
  const void* summaries;  // [kv_heads, blocks, 2, head_dim]
  float* scores;          // [kv_heads, count], out
  float* workspace;       // score_blocks_workspace_floats(kv_heads, head_dim)
  DType type, k_type;     // of q; of the summaries
  int64_t queries, heads, kv_heads, head_dim, q_stride, blocks;
  int64_t first_block, count;
  BlockScore score;
  BlockReduce reduce;
};
int64_t score_blocks_workspace_floats(int64_t kv_heads, int64_t head_dim);
void score_blocks(const ScoreBlocksParams& params, Stream& stream);

// For each KV head the `keep` best of `count` scores; ties go to the lower block, NaN counts as -inf. REQUIRES: 0 <
// keep <= count <= kMaxBlocks, keep <= kMaxKeptBlocks.
constexpr int64_t kMaxKeptBlocks = 1024;  // a partial KV of 16 Ki tokens
struct SelectBlocksParams {
  const float* scores;  // [kv_heads, count]
  int32_t* chosen;      // [kv_heads, keep], out: block numbers, first_block included, ascending
  int64_t kv_heads, count, keep, first_block;
};
void select_blocks(const SelectBlocksParams& params, Stream& stream);

// Copies the selected blocks in these segments to their slots: slot i of KV head h is rows [i * kBlockRows, (i + 1) *
// kBlockRows) of head h. Blocks in other segments are left to other calls; a block is never in two segments. int8 rows
// become exact ones, with the bits of dequantise_rows(). REQUIRES: all rows of the selected blocks have been written.
struct GatherBlocksParams {
  const int32_t* chosen;               // [kv_heads, keep], each KV head's ascending
  void* k_out;                         // [kv_heads, out_rows, head_dim]
  void* v_out;                         // the same
  DType k_type, v_type;                // of k_out and v_out
  DType stored_k_type, stored_v_type;  // of the segments: the same or int8
  int64_t kv_heads, head_dim, keep, out_rows;
  int64_t segment_count;  // at most kMaxPrefixSegments
  KvSegment segments[kMaxPrefixSegments];
};
void gather_blocks(const GatherBlocksParams& params, Stream& stream);

// Copies committed rows from the tail ring, for all layers: position p, in [first_position, first_position + count), is
// row p % ring_rows of the ring and row p - origin of the window.
struct CopyWindowParams {
  const void* ring_k;  // [layers, kv_heads, ring_rows, head_dim]
  const void* ring_v;
  void* k_out;  // [layers, kv_heads, out_rows, head_dim]: from the window's row 0 on
  void* v_out;
  DType k_type, v_type;
  int64_t layers, kv_heads, head_dim, ring_rows, out_rows;
  uint64_t k_layer_bytes, v_layer_bytes;  // from one layer of k_out (v_out) to the next
  int64_t origin, first_position, count;  // REQUIRES: count <= ring_rows, first_position >= origin
};
void copy_window(const CopyWindowParams& params, Stream& stream);

}  // namespace headrace
