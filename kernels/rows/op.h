// KV rows stored in fewer than 16 bits: their formats, and the ops that write and read them.
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

constexpr int64_t kMaxRowHeadDim = 256;  // must be even

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

// ---- Remainders -----------------------------------------------------------------------------------------------------
// What int8 rows lack of the bf16 rows that they were made from: with both, a segment has its exact bits again, in
// about half the bytes. cache/base.h has the layout. With a magnitude's 15 bits as an integer, and `base` = those of
// (|q| - 1/2) * scale (of scale / 2 if q = 0), rounded down to bf16, a value's byte is
//   q != 0   its magnitude - base, in [0, 214]; its sign is q's
//   q = 0    base - its magnitude, in [0, 125], or 126 if it is zero; plus 128 if it is negative
//   255      any other value, whose bits are in the list: a small one for its row, or one of a row whose scale is 0,
//   NaN
//            (which counts as 0) or a subnormal f16 too coarse for the row
// A run takes its places in the list in one piece, in any order of the runs; within a run they are in order of value.

constexpr int64_t kMaxRemainderSegments = 16;  // decoded by one call

// All stride_rows rows of a segment.
struct EncodeRemaindersParams {
  KvSegment exact;   // of bf16
  KvSegment rows;    // of int8, as quantise_rows() made them of `exact`
  void* remainders;  // remainder_bytes() with a full list, aligned to 16 bytes
  uint32_t* listed;  // values that need the list: set to 0 before the call. More than its capacity: the segment
                     // cannot be decoded
  int64_t kv_heads, head_dim;  // REQUIRES: head_dim % 8 == 0; kv_heads * stride_rows * head_dim % kRemainderRun == 0
};
void encode_remainders(const EncodeRemaindersParams& params, Stream& stream);

struct DecodeRemaindersParams {
  struct Segment {
    const void* remainders;  // as encoded; of the list no more than it has
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
