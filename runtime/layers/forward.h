// The steps of a layer on either side of its attention, shared by prefill, decode and drafts: the same ops in the same
// order. In the target's passes of the decode path the residual stream is f32; in prefill it has the weights' type
// (docs/design.md, section 6). Free functions over views; nothing is owned and nothing waits.
#pragma once

#include <cstdint>

#include "kernels/attention/op.h"
#include "kernels/product/op.h"
#include "kernels/segment.h"
#include "offload/device/stream.h"
#include "runtime/layers/layer_work.h"
#include "runtime/layers/rope_tables.h"
#include "runtime/model/weights.h"

namespace headrace {

// What every call of a pass has in common.
struct Pass {
  LayerWork work;
  const int32_t* positions = nullptr;  // [rows], device
  RopeTables rope, local_rope{};
  DType type;            // of the weights and of all activations but the residual stream
  DType k_type, v_type;  // of the rows that rotate_rows() makes: never low-bit
  DType hidden_type;     // of the residual stream: kF32, or `type`
  float eps;             // of the norms
  int64_t rows;
  ProductPath path;
  Stream* stream;
  void* matrix = nullptr;  // where a layer's quantised matrices are dequantised, each before its product; null: nowhere

  void* at(void* base, int64_t elements) const {
    return static_cast<std::byte*>(base) + static_cast<uint64_t>(elements) * dtype_bytes(type);
  }
};

// out [rows, n] = x [rows, k] . weight [n, k] + bias + residual.
struct LayerProduct {
  const void* x = nullptr;
  const Weight& weight;
  const void *bias = nullptr, *residual = nullptr;  // null: none
  void* out = nullptr;                              // of pass.hidden_type with a residual, otherwise of pass.type
  const void* norm = nullptr;                       // of x before, which then is of pass.hidden_type; null: none
  bool wide = false;                                // out is of pass.hidden_type without a residual, too
};
void multiply(const Pass& pass, const LayerProduct& product);

// out = RMSNorm(x), rows of `cols` elements, those of out `out_stride` elements apart.
struct LayerNorm {
  const void* x = nullptr;  // [rows, cols], of pass.hidden_type
  const void* weight = nullptr;
  void* out = nullptr;  // of pass.type
  int64_t cols = 0, out_stride = 0;
};
void normalise(const Pass& pass, const LayerNorm& norm);

// out = (residual + RMSNorm(pass.work.branch)) * scalar, rows of `cols` elements, all of pass.hidden_type.
struct LayerBranch {
  const void* norm = nullptr;
  int64_t cols = 0;
  const void* residual = nullptr;
  void* out = nullptr;           // may be residual
  const void* scalar = nullptr;  // [1], of pass.type; null: 1
};
void add_branch(const Pass& pass, const LayerBranch& branch);

// Enqueues the dequantising of a whole matrix to `to`, [rows, cols] of `type`, and returns it as it is there.
Weight dequantised(const Weight& weight, DType type, void* to, Stream& stream);

// out[i] = the embedding of token ids[i], [rows, cols], rounded to `type`.
struct EmbeddedTokens {
  const int32_t* ids;  // [rows], device
  int64_t rows;
  DType type;      // of the weights
  DType out_type;  // type, or kF32
  void* out;
  float factor = 1.0f;  // they are multiplied by, and rounded again: embedding_factor()
};
float root_factor(int64_t width, DType type);                   // sqrt(width), rounded to `type`, that of the weights
float embedding_factor(const ModelConfig& config, DType type);  // likewise
void embed_tokens(const Weight& embedding, const EmbeddedTokens& tokens, Stream& stream);

// hidden [rows, hidden] -> work.qkv [rows, spec.in_width()]: norm and product.
void qkv_product(const Pass& pass, const LayerWeights& layer, const void* hidden);
// Rows [first, first + rows) of work.qkv: the head norms of layers that have them; rotates q in place; K and V,
// rounded to the cache's types, go to `to`, unless the layer makes none.
void rotate_rows(const Pass& pass, const LayerWeights& layer, int64_t first, int64_t rows, const KvRows& to);
// Both, of all rows; work.qkv has q alone afterwards.
void rotated_qkv_product(const Pass& pass, const LayerWeights& layer, const void* hidden, const KvRows& to);
// work.attention *= sigmoid of the gates in work.qkv, where the layer has some.
void gate_output(const Pass& pass, const LayerWeights& layer);
// out = work.attention . the output matrix + residual, normalised before it is added where the layer says so.
void attention_output(const Pass& pass, const LayerWeights& layer, const void* residual, void* out);
// The MLP with its norm and residual, in place.
void feed_forward(const Pass& pass, const LayerWeights& layer, void* hidden);
// Both: work.attention -> hidden, the layer's second half.
void layer_output(const Pass& pass, const LayerWeights& layer, void* hidden);
// hidden -> logits [rows, vocab] in f32: norm, unless null, and head. A quantised head on a GPU: only on the decode
// path.
void output_logits(const Pass& pass, const void* norm, const Weight& head, const void* hidden, float* logits);
// The model's, which it may cap.
void output_logits(const Pass& pass, const Weights& weights, const void* hidden, float* logits);

// The shape of a layer's attention call over work.qkv and rows of the pass's types.
AttentionShape attention_shape(const Pass& pass, const AttentionSpec& attention);

}  // namespace headrace
