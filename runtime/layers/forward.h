// The parts of a decoder layer on either side of its attention, shared by prefill and decode: the same ops in the same
// order. In passes of the decode path the residual stream is f32; in prefill it has the weights' type (docs/design.md,
// section 6). Free functions over views; nothing is owned and nothing waits.
#pragma once

#include <cstdint>

#include "cache/layout.h"
#include "kernels/attention/op.h"
#include "kernels/product/op.h"
#include "kernels/segment.h"
#include "offload/device/buffer.h"
#include "offload/device/stream.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/model/config.h"
#include "runtime/model/weights.h"

namespace headrace {

// Room for one layer's activations of up to `rows` rows; views into one device buffer.
struct LayerWork {
  void* normed = nullptr;     // [rows, hidden]
  void* qkv = nullptr;        // [rows, (heads + 2 kv_heads) * head_dim]
  void* attention = nullptr;  // [rows, heads * head_dim]
  void* gate_up = nullptr;    // [rows, 2 * ffn]
  void* activated = nullptr;  // [rows, ffn]
};
uint64_t layer_work_bytes(const ModelConfig& config, DType dtype, int64_t rows);
// Device memory that the products of a pass of `rows` rows, enqueued on `stream`, will take beside their operands and
// what the stream has for them already. On the decode path the head's are among them.
uint64_t product_bytes(const ModelConfig& config, const Weights& weights, Stream& stream, int threads, int64_t rows,
                       ProductPath path);
// Of those, what one kind of product takes.
uint64_t product_kind_bytes(const ModelConfig& config, DType dtype, const ProductPlace& place, int64_t rows,
                            ProductPath path);
// `threads`: the device's.
inline ProductPlace product_place(Backend backend, int threads, bool keeps_blocks) {
  return {.backend = backend, .unpacking_threads = keeps_blocks ? threads : 0};
}
LayerWork layer_work(const ModelConfig& config, DType dtype, int64_t rows, std::byte* memory);

// What every call of a pass has in common.
struct Pass {
  const ModelConfig* config;
  const Weights* weights;
  LayerWork work;
  const int32_t* positions;  // [rows], device
  const float* cos_sin;      // [rope_tables(), table_rows, head_dim], device
  int64_t table_rows;
  DType k_type, v_type;  // of the rows that rotate_rows() makes: never low-bit
  DType hidden_type;     // of the residual stream: kF32, or the weights' type
  int64_t rows;
  ProductPath path;
  Stream* stream;
  void* matrix = nullptr;  // where a layer's quantised matrices are dequantised, each before its product; null: nowhere
};

// Enqueues the dequantising of a whole matrix to `to`, [rows, cols] of `type`, and returns it as it is there.
Weight dequantised(const Weight& weight, DType type, void* to, Stream& stream);

// Tables that rotate_rows() reads: one for q and k, or one for k and one for q where q is scaled by its position.
inline int64_t rope_tables(const RopeConfig& rope) { return rope.query_beta != 0 ? 2 : 1; }
// Fills the tables from the model's rope settings. Waits for the stream.
struct RopeTableRows {
  const RopeConfig* rope;
  int64_t head_dim, max_positions;
  int64_t rows;     // positions [0, rows)
  float* inv_freq;  // [head_dim / 2], device
  float* cos_sin;   // [rope_tables(), rows, head_dim], device
};
void fill_rope_table(const RopeTableRows& table, Stream& stream);

// out[i] = the embedding of token ids[i], [rows, cols], rounded to `type`.
struct EmbeddedTokens {
  const int32_t* ids;  // [rows], device
  int64_t rows;
  DType type;      // of the weights
  DType out_type;  // type, or kF32
  void* out;
};
void embed_tokens(const Weight& embedding, const EmbeddedTokens& tokens, Stream& stream);

// hidden [rows, hidden] -> work.qkv: norm and product.
void qkv_product(const Pass& pass, const LayerWeights& layer, const void* hidden);
// Rows [first, first + rows) of work.qkv: the head norms of layers that have them; rotates q in place; K and V,
// rounded to the cache's types, go to `to`.
void rotate_rows(const Pass& pass, const LayerWeights& layer, int64_t first, int64_t rows, const KvRows& to);
// Both, of all rows; work.qkv has q alone afterwards.
void rotated_qkv_product(const Pass& pass, const LayerWeights& layer, const void* hidden, const KvRows& to);
// work.attention -> hidden, the layer's second half: output product, norm, MLP, both residuals.
void layer_output(const Pass& pass, const LayerWeights& layer, void* hidden);
// hidden -> logits [rows, vocab] in f32: final norm and head. A quantised head on a GPU: only on the decode path.
void output_logits(const Pass& pass, const void* hidden, float* logits);

// The shape of a layer's attention call over work.qkv and rows of the pass's types.
AttentionShape attention_shape(const Pass& pass, const AttentionSpec& attention);
// Of `rows` queries of `heads` heads, whose widths add up to `width`.
AttentionState carve_states(int64_t rows, int64_t heads, int64_t width, BumpAllocator& allocator);

// Of the layers with attention, whose rows are alike. `exact`: the weights' type, in which low-bit rows are held
// exactly.
RowShape row_shape(const ModelConfig& config, DType k_type, DType v_type, DType exact);

}  // namespace headrace
