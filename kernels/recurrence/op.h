// Gated DeltaNet (arXiv 2412.06464): the convolution and norms before it, the recurrence, its chunk form for prefill,
// and the gated norm behind it. A value head has a state S of [k_dim, v_dim] in f32. A token has q, k, v, beta and g,
// and
//
//   S' = exp(g) S;   d = beta (v - S'^T k);   S = S' + k d^T;   o = S^T q
//
// A column of S depends on no other column. The sum over k_dim has one order, which k_dim alone decides, so the bits of
// a token depend on the state before its path and on the path, never on the other rows of the call, on how passes cut
// the path, or on threads (docs/design.md, section 6, rule 5). Each op takes one params struct of views and a stream,
// owns nothing and is asynchronous. Arrays of f32 are aligned to 16 bytes.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "offload/device/stream.h"

namespace headrace {

constexpr int64_t kMaxDeltaKeyDim = 128, kMaxDeltaDim = 256;  // of k_dim, of v_dim; both are multiples of 8
constexpr int64_t kDeltaConvRows = 3;                         // earlier tokens that the convolution, of width 4, reads
constexpr int64_t kDeltaChunkRows = 64;                       // of the chunk form
constexpr int64_t kDeltaPartRows = 1024;                      // of the chunk form that are computed at a time

struct DeltaShape {
  int64_t k_heads, v_heads, k_dim, v_dim;  // v_heads: a multiple of k_heads
  bool tiled;                              // value head j reads key head j % k_heads, else j / (v_heads / k_heads)

  int64_t k_width() const { return k_heads * k_dim; }
  int64_t v_width() const { return v_heads * v_dim; }
  int64_t channels() const { return 2 * k_width() + v_width(); }  // C: q, k, v
  int64_t in_width() const { return channels() + v_width() + 2 * v_heads; }
};

// What a pass keeps of a token, beyond the call, in one layer: rows of earlier calls are pending until they are
// committed or dropped.
struct DeltaRows {
  void* m;   // [pass_rows, C], of the type of `in`: the inputs of the convolution
  float* k;  // [pass_rows, k_heads, k_dim], normalised
  float* d;  // [pass_rows, v_heads, v_dim]
  float* g;  // [pass_rows, v_heads]: the logarithm of the decay
};

// Where a call's rows are in a tree of pass rows, as for tail_attention(). Call row i is pass row *first + i. A row
// comes after its ancestors.
struct DeltaPath {
  const int32_t* positions;  // [rows]: t
  const int32_t* committed;  // [1]: L, the tokens in the committed state; L <= t
  const int32_t* path;  // [rows, path_stride]: the pass row of position L + j, j in [0, t - L]; the last is its own
  int64_t path_stride;
  const int32_t* first = nullptr;  // [1]; null: 0
};

// ---- The inputs -----------------------------------------------------------------------------------------------------
// c_t = silu(sum over u in [0, 4) of conv_weight[., u] m_{t-3+u}), u ascending; q and k of c are normalised per head, x
// / sqrt(sum of x^2 + 1e-6), and q / sqrt(k_dim); beta = 1 / (1 + exp(-b)); g = decay softplus(a + dt_bias), with
// softplus(x) = x for x > 20. All of it in f32. m of the three tokens before is in the row's path, and for positions
// below L in the convolution state, `conv`. Without a path (path.path is null: prefill) call row i follows row i - 1,
// row 0 follows `conv`, and pass row i is call row i; stored.m may then be null, since `in` still has it.
struct DeltaInputsParams {
  DeltaShape shape;
  const void* in;            // [rows, in_width()], rows in_stride elements apart: q, k, v | z | b | a
  const void* conv;          // [3, C]: m of positions L - 3, L - 2, L - 1; zeros before the first token
  const float* conv_weight;  // [C, 4]: [., 3] multiplies the token itself
  const float* decay;        // [v_heads]: -exp(A_log)
  const float* dt_bias;      // [v_heads]
  DeltaPath path;
  DeltaRows stored;  // m, k and g are written at pass rows; d is not touched
  float* q;          // [rows, k_heads, k_dim]: call rows, as v and beta
  float* v;          // [rows, v_heads, v_dim]
  float* beta;       // [rows, v_heads]
  DType type;        // of in, conv and m: kF32, kF16 or kBF16
  int64_t rows, in_stride;
  int64_t pass_rows;  // of stored; path entries are below it
};
void delta_inputs(const DeltaInputsParams& params, Stream& stream);

// ---- Decode: the recurrence -----------------------------------------------------------------------------------------
// Computes o and d of the call's rows along their paths. k, d and g of rows before *first were stored by earlier calls,
// k and g of the call's rows by delta_inputs(). The states are only read.
//
// `ahead` is optional: a second state, at the end of a path of rows before *first. A row whose path continues this one
// starts there and does not replay it. That changes no bit: make it by a copy of the state and delta_commit().
struct DeltaAhead {
  const float* state = nullptr;     // [v_heads, k_dim, v_dim]; null: none
  const int32_t* row = nullptr;     // [1]: the pass row of its last token; -1: none
  const int32_t* length = nullptr;  // [1]: the rows of its path, from position L on
};
struct DeltaRecurrenceParams {
  DeltaShape shape;
  const float* state;  // [v_heads, k_dim, v_dim]: before position L
  const float* q;      // [rows, k_heads, k_dim]: call rows, as v, beta and o
  const float* v;      // [rows, v_heads, v_dim]
  const float* beta;   // [rows, v_heads]
  DeltaPath path;
  DeltaRows stored;  // k, g: read; d: read before *first, written from there on; m: not used
  float* o;          // [rows, v_heads, v_dim]
  int64_t rows, pass_rows;
  DeltaAhead ahead = {};
};
void delta_recurrence(const DeltaRecurrenceParams& params, Stream& stream);

// ---- Commit ---------------------------------------------------------------------------------------------------------
// Replays pass rows in order into the state, S = exp(g) S + k d^T, with the recurrence's bits, and moves the
// convolution state on: its last three rows of m. One call for all layers, which follow one another in every array.
struct DeltaCommitParams {
  DeltaShape shape;
  DeltaRows stored;       // [layers, pass_rows, ...]: read
  const int32_t* source;  // [count], device memory: pass rows
  float* state;           // [layers, v_heads, k_dim, v_dim]: in place
  void* conv;             // [layers, 3, C]: in place; null: it stays
  DType type;             // of m and conv
  int64_t layers, pass_rows, count;
};
void delta_commit(const DeltaCommitParams& params, Stream& stream);

// ---- Prefill: chunks ------------------------------------------------------------------------------------------------
// o of rows that follow one another, and both states after them. Whole chunks of 64 rows, counted from row 0, have the
// chunk form; the last rows % 64 rows have the recurrence, with the bits of delta_recurrence() and delta_commit(). A
// chunk's bits depend on the state before it and its own rows. REQUIRES: row 0 is at an absolute multiple of 64, or
// rows < 64 and they end at or before the next multiple.
struct DeltaChunksParams {
  DeltaShape shape;
  const float* q;     // [rows, k_heads, k_dim]
  const float* k;     // [rows, k_heads, k_dim]
  const float* v;     // [rows, v_heads, v_dim]
  const float* beta;  // [rows, v_heads]
  const float* g;     // [rows, v_heads]
  const void* m;      // [rows, C], rows m_stride elements apart: the first columns of delta_inputs()'s `in`
  float* state;       // [v_heads, k_dim, v_dim]: in place
  void* conv;         // [3, C]: in place
  float* o;           // [rows, v_heads, v_dim]
  void* scratch;      // delta_chunks_scratch_bytes(), aligned to 16 bytes
  DType type;         // of m and conv
  int64_t rows, m_stride;
};
void delta_chunks(const DeltaChunksParams& params, Stream& stream);
// Some 50 KiB a row for 16 key heads and 48 value heads, of at most kDeltaPartRows rows.
uint64_t delta_chunks_scratch_bytes(const DeltaShape& shape, int64_t rows);

// ---- The output -----------------------------------------------------------------------------------------------------
// out = o / sqrt(mean(o^2) + eps) * weight * silu(z), per value head, rounded once.
struct DeltaOutputParams {
  DeltaShape shape;
  const float* o;       // [rows, v_heads, v_dim]
  const void* z;        // [rows, v_heads, v_dim], rows z_stride elements apart: columns of delta_inputs()'s `in`
  const float* weight;  // [v_dim]
  void* out;            // [rows, v_heads, v_dim]
  DType z_type, type;   // of z; of out
  int64_t rows, z_stride;
  float eps;
};
void delta_output(const DeltaOutputParams& params, Stream& stream);

}  // namespace headrace
