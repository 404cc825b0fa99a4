// The small ops between the products: embedding, RMSNorm, RoPE with the rounding of K and V, gates and conversion.
// Each takes one params struct of views and a stream, owns nothing and is asynchronous; the CPU body is the reference.
// Sums and transcendental functions are fp32; results are rounded once, to the type of their output. A row's bits never
// depend on the other rows of the call (docs/design.md, section 6).
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/elementwise/activation.h"
#include "offload/device/stream.h"

namespace headrace {

struct EmbeddingParams {
  const int32_t* ids;  // [rows], each in [0, vocab)
  const void* table;   // [vocab, hidden]
  void* out;           // [rows, hidden]
  DType type;          // of the table
  DType out_type;      // type, or kF32 with the same values
  int64_t rows, vocab, hidden;
};
void embedding(const EmbeddingParams& params, Stream& stream);

// out[i * count + j] = ids[i] * stride + first + j: the rows of a table that has `stride` rows for each id.
struct RowIdsParams {
  const int32_t* ids;  // [rows]
  int32_t* out;        // [rows, count]
  int64_t rows, count, stride, first;
};
void row_ids(const RowIdsParams& params, Stream& stream);

// out = x / sqrt(mean(x^2) + eps) * weight, over the last dimension. In place is allowed if the types are the same. The
// result depends on the values of x alone: x in kF32 with values that `type` can hold has the bits of x in `type`.
// With a residual, out = (residual + that) * factor, rounded once.
struct RmsNormParams {
  const void* x;       // [rows, cols], rows x_stride elements apart
  const void* weight;  // [cols]; null: 1
  void* out;           // [rows, cols], rows out_stride elements apart
  DType x_type;        // type, or kF32
  DType type;          // of weight and out; with a residual out has x_type
  int64_t rows, cols, x_stride, out_stride;
  float eps;
  const void* residual = nullptr;  // [rows, cols], as out and of x_type; null: none. May be out itself
  const void* factor = nullptr;    // [1], of `type`; null: 1. Only with a residual
  bool wide = false;               // out has x_type without a residual, too
};
void rms_norm(const RmsNormParams& params, Stream& stream);

// Rotates pairs (i, i + head_dim/2) of q in place and of k on output, and rounds K and V to the cache's types before
// any use, by the row itself included (docs/design.md, section 6, rule 4). Sources: the fused q|k|v rows of a product.
// Destinations: any layout with strides in elements, so a segment ([kv_heads, rows, head_dim]) and a pass's rows
// ([rows, kv_heads, head_dim]) are handled alike. kv_heads = 0: only q. With q_norm and k_norm (Qwen3) each head of q
// and k is first normalised as by rms_norm(), rounding included; with v_norm (Gemma 4) each head of v, too, without a
// weight. v may be k, which then is both, before it is normalised.
constexpr int64_t kMaxNormedHeadDim = 512;
struct RopeParams {
  void* q;                   // [rows, heads, head_dim], rows qkv_stride elements apart; rotated in place
  const void* k;             // [rows, kv_heads, head_dim], rows qkv_stride elements apart
  const void* v;             // the same
  const int32_t* positions;  // [rows]
  const float* cos_sin;      // [table_rows, head_dim]: cos of the head_dim/2 angles, then sin, scale included
  int64_t q_table = 0;       // elements from cos_sin to the table for q; 0: q and k share one
  void* k_out;
  void* v_out;
  DType type, k_type, v_type;
  int64_t rows, heads, kv_heads, head_dim, qkv_stride, table_rows;
  int64_t out_row_stride, out_head_stride;  // elements, of k_out and v_out
  const int32_t* out_first;                 // [1]: the row of k_out and v_out for the first row; null: 0
  const void* q_norm = nullptr;             // [head_dim]; null: no head is normalised
  const void* k_norm = nullptr;
  bool v_norm = false;  // only with q_norm
  float eps = 0.0f;
};
void rope(const RopeParams& params, Stream& stream);

// cos_sin[p] for p in [0, rows): the angle is float(p) * inv_freq[i] in fp32, as in the reference implementations. A
// pair whose frequency is 0 passes: its cosine is 1, without a factor.
struct RopeTableParams {
  const float* inv_freq;  // [head_dim / 2]
  float* cos_sin;         // [rows, head_dim], times scale * (1 + beta * ln(1 + floor(p / step)))
  float scale;
  int64_t rows, head_dim;
  double beta = 0.0;
  int64_t step = 1;
};
void rope_table(const RopeTableParams& params, Stream& stream);

// out = silu(gate) * up, gelu(gate) * up, or the clamped silu's product.
struct SiluMulParams {
  const void* gate_up;  // [rows, 2, cols]: gate, then up
  void* out;            // [rows, cols]
  DType type;
  int64_t rows, cols;
  Activation activation = Activation::kSilu;
  // [rows, cols], rows up_stride elements apart; gate_up then has rows of the gate, gate_stride elements apart, and may
  // be out. Null: up follows the gate.
  const void* up = nullptr;
  int64_t gate_stride = 0, up_stride = 0;
};
void silu_mul(const SiluMulParams& params, Stream& stream);

// y = y sigmoid(gate), in place: attention's output where the query projection has a gate for each head.
struct GateRowsParams {
  void* y;           // [rows, heads, head_dim]
  const void* gate;  // [rows, heads, head_dim], rows gate_stride and heads gate_head_stride elements apart
  DType type;        // of both
  int64_t rows, heads, head_dim, gate_stride, gate_head_stride;
};
void gate_rows(const GateRowsParams& params, Stream& stream);

// x = x * factor in place, rounded to `type`.
struct ScaleParams {
  void* x;       // [count]
  DType x_type;  // type, or kF32
  DType type;
  int64_t count;
  float factor;
};
void scale(const ScaleParams& params, Stream& stream);

// x = cap * tanh(x / cap), in place: the logits of models that bound them.
struct SoftcapParams {
  float* x;  // [count]
  int64_t count;
  float cap;  // above 0
};
void softcap(const SoftcapParams& params, Stream& stream);

// The same elements in another type, or in the same: none is kInt8 or kInt4.
struct ConvertParams {
  const void* in;  // [count]
  void* out;       // [count]
  DType in_type, out_type;
  int64_t count;
};
void convert(const ConvertParams& params, Stream& stream);

}  // namespace headrace
