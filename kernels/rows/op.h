// The ops that move KV rows: into a cache's ring and segments, before a draft's window, and to and from rows that are
// stored in fewer than 16 bits, whose formats are here.
//
// A plane is K or V of a segment's rows for all KV heads: the values [kv_heads, rows, row_value_bytes], then the
// parameters [kv_heads, rows, row_parameter_bytes] (cache/base.h); `rows` is the segment's stride_rows. A row's bits
// are made from that row alone.
//   int8   symmetric: scale = largest magnitude / 127, rounded to f16; value = q * scale, q in [-127, 127], rounded to
//          nearest even. A row of zeros, or of values too small for an f16 scale, has scale 0.
//   int4   the row is multiplied by an orthonormal Hadamard matrix of head_dim (QuaRot, arXiv 2404.00456), so that no
//          element stands out; then, in groups of kInt4Group, value = q * scale + minimum, q in [0, 15], scale =
//          (largest - smallest) / 15 and minimum in f16; byte i of a group's 16 has element i in its low nibble and
//          element 16 + i in its high one. REQUIRES: head_dim is a power of two, at least kInt4Group.
// A row with a value that is not finite, or that exceeds f16 as a scale, gets NaN for its parameters, so that whatever
// reads it sees NaN. (An infinite scale might make a score of -inf, which hides.)
//
// The rows of the tail (docs/design.md, section 6, rule 2) are never stored so.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/segment.h"
#include "offload/device/stream.h"

namespace headrace {

constexpr int64_t kMaxRowHeadDim = 512;  // must be even

// Rows [first_row, first_row + count) of one layer's segment, and the same rows of a segment of the same stride_rows.
// One of the two holds exact rows, of k_type and v_type: [kv_heads, stride_rows, head_dim]; the other stored ones. K or
// V whose stored type is not low_bit() is copied, if it is not the same memory.
struct RowsParams {
  KvSegment from, to;
  DType k_type, v_type;
  DType stored_k_type, stored_v_type;
  int64_t kv_heads, head_dim;
  int64_t first_row, count;
  bool write_back = false;  // of quantise_rows()
};
// Exact rows become stored ones. write_back: replaces the exact rows by what was stored: value times scale, rounded
// once to their type. REQUIRES: then nothing is int4.
void quantise_rows(const RowsParams& params, Stream& stream);
// The reverse, for int8: the bits that write_back leaves.
void dequantise_rows(const RowsParams& params, Stream& stream);

// Quantises committed rows of the tail ring, for all layers: position p, in [first_position, first_position + count),
// is row p % ring_rows of the ring, and row p - to_position of the layer's plane.
struct QuantiseRingParams {
  const void* ring_k;  // [layers, kv_heads, ring_rows, head_dim], of k_type
  const void* ring_v;
  void* const* to_k;  // [layers] pointers in device memory, each a plane of to_rows rows of stored_k_type
  void* const* to_v;
  DType k_type, v_type;
  DType stored_k_type, stored_v_type;  // a type that is not low_bit() is copied
  int64_t layers, kv_heads, head_dim, ring_rows, to_rows;
  int64_t first_position, count, to_position;  // REQUIRES: count <= ring_rows, all inside the plane
};
void quantise_ring(const QuantiseRingParams& params, Stream& stream);

// ---- Moves of exact rows --------------------------------------------------------------------------------------------

// Appends accepted rows of a pass to every layer's tail ring and active segment, by index: position first_position + j
// is pass row source[j]. One call for all layers. A cache that is only a ring has no active segment: active_k and
// active_v are null.
struct CommitParams {
  const void* pass_k;  // [layers, pass_rows, kv_heads, head_dim]
  const void* pass_v;
  const int32_t* source;  // [count]
  void* ring_k;           // [layers, kv_heads, ring_rows, head_dim]; position p is row p % ring_rows
  void* ring_v;
  void* const* active_k;  // [layers] pointers, each [kv_heads, active_rows, head_dim]: the segment with the positions
  void* const* active_v;
  DType k_type, v_type;
  int64_t layers, kv_heads, head_dim, pass_rows, ring_rows, active_rows;
  int64_t count, first_position;
  int64_t active_position;  // REQUIRES: at most first_position, all inside the segment
};
void commit_rows(const CommitParams& params, Stream& stream);

// Copies the last rows of one layer, as prefill built them, to its tail ring: `count` rows of one segment, from
// first_position on.
struct FillRingParams {
  const void* k;  // [kv_heads, stride_rows, head_dim], from the first of the rows on
  const void* v;  // the same; null: K alone is copied
  void* ring_k;   // [kv_heads, ring_rows, head_dim]; position p is row p % ring_rows
  void* ring_v;
  DType k_type, v_type;
  int64_t kv_heads, head_dim, stride_rows, ring_rows;
  int64_t count, first_position;  // REQUIRES: count <= ring_rows, all inside the segment
};
void fill_ring(const FillRingParams& params, Stream& stream);

constexpr int64_t kMaxPlacedHeadDim = 256;
// Places rows of a draft's cache directly before its window, for all layers, in one call: the first `sinks` rows, then
// the rows of `keep` chunks, chunk c being rows [c * chunk_rows, (c + 1) * chunk_rows). They get the positions
// [end - rows, end), rows = sinks + keep * chunk_rows. K is rotated on by the distance that its row moves, V is copied.
// REQUIRES: no row moves back: the last chunk ends before `end`.
struct PlaceRowsParams {
  const void* sink_k;  // [layers, kv_heads, sinks, head_dim]
  const void* sink_v;
  const void* ring_k;     // [layers, kv_heads, ring_rows, head_dim]; row r is at r % ring_rows; null if keep is 0
  const void* ring_v;     //
  void* k_out;            // [layers, kv_heads, out_rows, head_dim]
  void* v_out;            // the same
  const int32_t* chosen;  // [keep], ascending, device memory
  const float* cos_sin;   // [table_rows, head_dim], as of rope(); a factor in it is not applied again
  DType k_type, v_type;
  int64_t layers, kv_heads, head_dim, ring_rows, out_rows, table_rows;
  int64_t sinks, keep, chunk_rows, end;
};
void place_rows(const PlaceRowsParams& params, Stream& stream);

constexpr int64_t kMaxKeyRuns = 16;  // of one call
// Makes rows of K of rows of V, where a layer's K and V are one projection (Gemma 4): with v = x / rms(x), which has no
// weight, K is RoPE(v * weight). It is made of the row of V as that is stored, so that its bits depend on that row and
// its position alone, wherever it is made. v * weight is not rounded.
struct MakeKeysParams {
  // Row i of head h is at (i + *first) * row_stride + h * head_stride elements of both.
  struct Run {
    const void* v;           // of `type`
    void* k;                 // the same
    int64_t position, rows;  // of the first row; REQUIRES: all in the table
    int64_t row_stride, head_stride;
  };
  Run runs[kMaxKeyRuns];
  int64_t count;
  const int32_t* positions = nullptr;  // [rows] of the only run, device memory; null: those from run.position on
  const int32_t* first = nullptr;      // [1], device memory; null: 0
  const void* weight;                  // [head_dim], of weight_type
  const float* cos_sin;                // [table_rows, head_dim], as of rope()
  DType type, weight_type;
  int64_t kv_heads, head_dim, table_rows;
};
void make_keys(const MakeKeysParams& params, Stream& stream);

// ---- Remainders -----------------------------------------------------------------------------------------------------
// What int8 rows lack of the bf16 rows that they were made from: with both, a segment has its exact bits again. A real
// value takes 4.3 bits. cache/base.h has the layout.
//
// |q| of a row with scale s says that the magnitude is between (|q| - 1/2) s and (|q| + 1/2) s. With a magnitude's 15
// bits as an integer, and base(m) those of (m - 1/2) s, rounded down to bf16, a value's code is
//   q != 0   its magnitude - base(|q|), in as many bits as base(|q| + 1) - base(|q|) has: 2 for |q| = 127, 8 for 1; its
//            sign is q's
//   q = 0    one bit: 0 if the value is +0, 1 if its bits are in the list. So are all values of a
//            row whose scale is not a normal f16
// A run's piece has the codes of its values, the first value's first bit lowest; then, from a whole word, its list, two
// values a word, in order of value. The runs' pieces are in any order.

constexpr int64_t kMaxRemainderSegments = 16;  // decoded by one call

// All stride_rows rows of a segment.
struct EncodeRemaindersParams {
  KvSegment exact;   // of bf16
  KvSegment rows;    // of int8, as quantise_rows() made them of `exact`
  void* remainders;  // remainder_bytes() with all room, aligned to 16 bytes
  uint32_t* words;   // of all pieces: set to 0 before the call. More than the room, as also for rows that are not of
                     // these values: the segment cannot be decoded
  int64_t kv_heads, head_dim;  // REQUIRES: head_dim % 8 == 0; kv_heads * stride_rows * head_dim % kRemainderRun == 0
};
void encode_remainders(const EncodeRemaindersParams& params, Stream& stream);

struct DecodeRemaindersParams {
  struct Segment {
    const void* remainders;  // as encoded; no more than the pieces have
    KvSegment rows;          // of int8
    KvSegment exact;         // is written: all stride_rows rows, of bf16
  };
  Segment segments[kMaxRemainderSegments];
  int64_t count;
  int64_t kv_heads, head_dim;  // as encoded
};
// The bits of the encoded rows.
void decode_remainders(const DecodeRemaindersParams& params, Stream& stream);

}  // namespace headrace
