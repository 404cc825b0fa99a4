// Attention over a segmented KV cache (docs/design.md, section 6, rule 2, and section 8; FlashDecoding; flash
// attention's online softmax). A run of rows gives a state (o, m, l): o = sum of exp(s - m) * v, m = the largest score,
// l = sum of exp(s - m); states merge exactly, and an empty state (m = -inf, l = 0, o = 0) merges as a no-op. Query
// heads are grouped: query head h reads KV head h / (heads / kv_heads). Scores are q.k * scale, fp32. A query's bits
// depend on its position and the rows it sees, never on the other queries of the call.
//
// A sink is one more score of a query head, without a value: it takes a part of the weight and adds nothing, a state
// (o = 0, m = sink, l = 1). Prefill and the tail, which a query sees once each, fold it in.
//
// With a window, a query at position t sees rows from first_seen(t, window) on. Rows before it may hold anything, also
// in the tile that it begins in, and need not be there: segments may begin at any multiple of kPrefixTile up to it.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/segment.h"
#include "offload/device/stream.h"

namespace headrace {

constexpr int64_t kMaxAttentionHeadDim = 512;  // must be even
constexpr int64_t kMaxPrefixParts = 256;       // segments, or parts of them, that a call of prefix_attention() reads

// Whether CUDA multiplies queries of `type` by exact rows of these types on tensor cores: K and V are of one type,
// which is the queries', or f16 if those are bf16. Other rows are read many times more slowly.
constexpr bool has_tensor_rows(DType type, DType k_type, DType v_type) {
  return type != DType::kF32 && k_type == v_type && (k_type == type || (type == DType::kBF16 && k_type == DType::kF16));
}

// Shapes and types shared by all attention ops.
struct AttentionShape {
  int64_t queries, heads, kv_heads, head_dim;
  int64_t q_stride;  // elements between queries' rows of q
  DType type;        // of q and out
  DType k_type, v_type;
  float scale;         // 1 / sqrt(head_dim)
  int64_t window = 0;  // rows that a query sees, its own included; 0: all
};

// The first position that a query at position t sees.
constexpr int64_t first_seen(int64_t t, int64_t window) { return window > 0 && t >= window ? t + 1 - window : 0; }

// ---- Prefill: causal, blocked --------------------------------------------------------------------------------------
// Query i at position t = first_position + i sees rows [first_seen(t), t]. Keys are walked in tiles at absolute
// multiples of their size, which divides kPrefixTile. REQUIRES: the segments cover those rows, in order; none is empty,
// and all but the last have a multiple of kPrefixTile.
struct PrefillAttentionParams {
  AttentionShape shape;
  const void* q;              // [queries, heads, head_dim], strided
  const KvSegment* segments;  // [segment_count], device memory
  void* out;                  // [queries, heads, head_dim], contiguous
  int64_t segment_count, first_position;
  const float* sinks = nullptr;  // [heads]; null: none
};
void prefill_attention(const PrefillAttentionParams& params, Stream& stream);

// ---- Decode: the prefix --------------------------------------------------------------------------------------------
// The only attention that reads low-bit rows (kernels/rows/op.h): K or V or both may be int8; int4 is both or neither.
// Queries and states are those of exact rows: for int4 the op itself rotates the query, and rotates back what the
// segments of the call add to the state.
//
// Folds the states of up to kMaxPrefixParts segments into `state`, left to right, one state per segment. A query
// at position t sees rows [first_seen(t), tail_begin(t)); all others are an exact no-op, even a whole segment.

struct AttentionState {
  float* o;   // [queries, heads, head_dim], not normalised
  float* ml;  // [queries, heads, 2]: m, l
};

struct PrefixAttentionParams {
  AttentionShape shape;
  const void* q;             // [queries, heads, head_dim], strided
  const int32_t* positions;  // [queries]: t
  AttentionState state;      // folded in place
  AttentionState scratch;    // [segment_count, ...] as state
  int64_t segment_count;
  KvSegment segments[kMaxPrefixParts];
  void* rotated_q = nullptr;  // [queries, heads, head_dim], of shape.type: workspace for int4
  void* out = nullptr;        // [queries, heads, head_dim], contiguous: the state, normalised and rounded
  // The call before this on the stream was tail_attention(). Then, on CUDA, the segments' states are computed beside
  // the tail, which leaves most of a GPU idle.
  bool beside_tail = false;
};
void prefix_attention(const PrefixAttentionParams& params, Stream& stream);

// ---- Decode: the tail -----------------------------------------------------------------------------------------------
// Rows [tail_begin(t), t] in groups of kTailGroup at absolute multiples: rows below `committed` from the tail ring, the
// others from the pass's own rows along the query's path. Comes first: the prefix is folded into its state. With
// `first`, rows before *first are not seen: partial steps may have a window that is shorter than the tail. Nor are rows
// before first_seen(t).
struct TailAttentionParams {
  AttentionShape shape;
  const void* q;             // [queries, heads, head_dim], strided
  const int32_t* positions;  // [queries]: t
  const int32_t* committed;  // [1]: L, the rows in the full KV; L <= t, or L = t + 1: no row of the pass is seen
  const int32_t*
      path;  // [queries, path_stride]: the pass row of position L + j, for j in [0, t - L]; the last is the query's own
  const void* ring_k;  // [kv_heads, ring_rows, head_dim]; position p is row p % ring_rows
  const void* ring_v;
  const void* pass_k;  // [pass_rows, kv_heads, head_dim]
  const void* pass_v;
  AttentionState state;  // written
  int64_t path_stride, ring_rows, pass_rows;
  const int32_t* first = nullptr;  // [1]: at most every t, and a multiple of kTailGroup; null: 0
  const float* sinks = nullptr;    // [heads]; null: none
};
void tail_attention(const TailAttentionParams& params, Stream& stream);

}  // namespace headrace
