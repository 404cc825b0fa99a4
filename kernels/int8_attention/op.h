// Causal attention of prefill in 8 bits (docs/design.md, section 5). Keys and values of earlier tiles of 64 rows are
// int8; the tile that holds the query stays in the computation's type, because rows behind the query would decide its
// scales.
//
//   q   after norm and RoPE, rotated over the head, int8, one scale a row
//   K   minus c, rotated, int8, one scale a row, whose last two bits are cleared. c, [kv_heads, head_dim], is the mean
//       of the stored rows 0 to 511, in f32, summed in order of position; the scores of these tiles get q.c back, in
//       f32, once for a query
//   V   int8, one scale for each channel and tile of 64 rows (absolute multiples)
//   P   for each tile: m_t = the row's largest score in it, P = round-to-nearest-even(255 exp(s - m_t)) as u8
//
// Scores and softmax are f32. Sums of P V over a tile are int32, and o += sum * (V scale / 255) * exp(m_t - m), tiles
// in order, the query's own tile last; l adds the exponentials before they are rounded. The rotation is a Hadamard
// transform of blocks of head_rotation(head_dim) elements, whose butterflies have the order of kernels/int8/op.h. It is
// left unnormalised: scores are multiplied by 1 / block, a power of two. A row of q, K or a channel of V is quantised
// as there: scale = top / 127, q = round-to-nearest-even(x * (127 / top)); a top below kTinyInt8Row gives 0, a value
// that is not finite gives the scale NaN.
//
// Given equal inputs, both backends make the same int8 values and scales; a P may differ by 1 between backends, because
// exp does, and never between runs. A query's bits depend on its position and the rows it sees, never on the other
// queries of the call.
//
// Each op takes one params struct of views and a stream, owns nothing and is asynchronous; the CPU body is the truth.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/attention/op.h"
#include "kernels/segment.h"
#include "offload/device/stream.h"

namespace headrace {

// Queries before this position attend in the computation's type (prefill_attention()); it is also the number of rows of
// which c is the mean.
constexpr int64_t kInt8CentreRows = 512;

constexpr int64_t kMaxInt8AttentionHeadDim = 256;  // must be even

// Elements that one transform of a head spans: the largest power of two that divides head_dim.
constexpr int64_t head_rotation(int64_t head_dim) { return head_dim & -head_dim; }

// Rows of one layer in 8 bits, in the backend's order (kernels/int8_attention/layout.h); nothing but these ops reads
// it.
struct Int8KvRows {
  std::byte* data = nullptr;  // int8_kv_bytes(), 256-byte aligned
  int64_t rows = 0;           // that there is room for, a multiple of kPrefixTile
};
uint64_t int8_kv_bytes(Backend backend, int64_t rows, int64_t kv_heads, int64_t head_dim);

// Computes c of a layer, whose first kInt8CentreRows rows exist.
struct Int8CentreParams {
  const KvSegment* segments;  // [segment_count], device memory; rows of k_type
  int64_t segment_count;
  DType k_type;
  int64_t kv_heads, head_dim;
  float* centre;  // [kv_heads, head_dim]
};
void int8_centre(const Int8CentreParams& params, Stream& stream);

// Converts the rows [first, end) of a layer, whole tiles, to the same places of `out`.
struct Int8KvParams {
  const KvSegment* segments;  // [segment_count], device memory
  int64_t segment_count;
  DType k_type, v_type;  // of the segments' rows: never low-bit
  int64_t kv_heads, head_dim;
  const float* centre;  // of int8_centre()
  int64_t first, end;   // multiples of kPrefixTile
  Int8KvRows out;
};
void int8_kv(const Int8KvParams& params, Stream& stream);

// Query i at position first_position + i sees rows [0, first_position + i]. REQUIRES: first_position >=
// kInt8CentreRows; `kv` has the rows before the last query's tile; the segments cover the rows of all queries' own
// tiles.
struct Int8AttentionParams {
  AttentionShape shape;  // its k_type and v_type: of the segments' rows; without a window
  const void* q;         // [queries, heads, head_dim], strided
  Int8KvRows kv;
  const float* centre;        // that was taken from the keys of `kv`
  const KvSegment* segments;  // [segment_count], device memory
  void* out;                  // [queries, heads, head_dim], contiguous, of shape.type
  std::byte* workspace;       // int8_attention_workspace_bytes(), device memory, 256-byte aligned: queries in 8 bits
  int64_t segment_count, first_position;
  const float* sinks = nullptr;  // [heads], as in PrefillAttentionParams; null: none
};
uint64_t int8_attention_workspace_bytes(Backend backend, const AttentionShape& shape);
void int8_attention(const Int8AttentionParams& params, Stream& stream);

}  // namespace headrace
