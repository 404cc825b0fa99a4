#include "runtime/layers/forward.h"

#include <cmath>

#include "kernels/elementwise/op.h"
#include "kernels/rows/op.h"
#include "offload/device/trace.h"
#include "runtime/layers/experts.h"

namespace headrace {
namespace {

InputNorm norm_of(const Pass& pass, const void* weight) {
  return {.weight = weight, .x_type = pass.hidden_type, .eps = pass.eps, .room = pass.work.normed};
}

RopeParams rope_params(const Pass& pass, const LayerWeights& w, int64_t first, int64_t rows, const KvRows& to) {
  const AttentionSpec& a = w.spec.attention();
  const RopeTables& tables = a.local_rope ? pass.local_rope : pass.rope;
  const int64_t start = first * w.spec.attention().in_width();
  return {.q = pass.at(pass.work.qkv, start),
          .k = pass.at(pass.work.qkv, start + a.q_width()),
          .v = pass.at(pass.work.qkv, start + a.q_width() + (a.k_is_v ? 0 : a.kv_width())),
          .positions = pass.positions + first,
          .cos_sin = tables.cos_sin,
          .q_table = tables.q_offset(),
          .k_out = to.k,
          .v_out = to.v,
          .type = pass.type,
          .k_type = pass.k_type,
          .v_type = pass.v_type,
          .rows = rows,
          .heads = a.heads,
          .kv_heads = a.makes_rows() ? a.kv_heads : 0,
          .head_dim = a.head_dim,
          .qkv_stride = w.spec.attention().in_width(),
          .table_rows = tables.rows,
          .out_row_stride = to.row_stride,
          .out_head_stride = to.head_stride,
          .out_first = to.first,
          .q_norm = w.q_norm,
          .k_norm = w.k_norm,
          .v_norm = a.v_norm,
          .eps = pass.eps};
}

// Where K and V are one projection, K is made of V as it is stored, here as anywhere: the bits are those that rows have
// whose V alone was kept.
void keys_of_values(const Pass& pass, const LayerWeights& w, int64_t first, int64_t rows, const KvRows& to) {
  const AttentionSpec& a = w.spec.attention();
  if (!a.k_is_v) return;
  const RopeTables& tables = a.local_rope ? pass.local_rope : pass.rope;
  make_keys({.runs = {{.v = to.v,
                       .k = to.k,
                       .position = 0,
                       .rows = rows,
                       .row_stride = to.row_stride,
                       .head_stride = to.head_stride}},
             .count = 1,
             .positions = pass.positions + first,
             .first = to.first,
             .weight = w.k_norm,
             .cos_sin = tables.cos_sin,
             .type = pass.v_type,
             .weight_type = pass.type,
             .kv_heads = a.kv_heads,
             .head_dim = a.head_dim,
             .table_rows = tables.rows},
            *pass.stream);
}

Weight ready_weight(const Pass& pass, const Weight& weight) {
  if (pass.matrix == nullptr || weight.plain()) return weight;
  return dequantised(weight, pass.type, pass.matrix, *pass.stream);
}

// Enqueues what the weight still needs.
ProductParams ready_product(const Pass& pass, const LayerProduct& p) {
  return {.x = p.x,
          .weight = ready_weight(pass, p.weight),
          .bias = p.bias,
          .residual = p.residual,
          .out = p.out,
          .type = pass.type,
          .out_type = p.residual != nullptr || p.wide ? pass.hidden_type : pass.type,
          .rows = pass.rows,
          .n = p.weight.rows(),
          .k = p.weight.cols,
          .path = pass.path,
          .norm = norm_of(pass, p.norm)};
}

LayerProduct qkv_of(const Pass& pass, const LayerWeights& w, const void* hidden) {
  return {.x = hidden, .weight = w.qkv, .bias = w.qkv_bias, .out = pass.work.qkv, .norm = w.input_norm};
}

// out = (residual + what the product makes) * scalar; it is normalised before unless `norm` is null. REQUIRES: without
// a norm there is no scalar.
void add_product(const Pass& pass, LayerProduct p, const void* norm, const void* scalar = nullptr) {
  CHECK(norm != nullptr || scalar == nullptr);
  if (norm == nullptr) return multiply(pass, p);
  void* const out = p.out;
  const void* const residual = p.residual;
  p.out = pass.work.branch;
  p.residual = nullptr;
  p.wide = true;
  multiply(pass, p);
  add_branch(pass, {.norm = norm, .cols = p.weight.rows(), .residual = residual, .out = out, .scalar = scalar});
}

}  // namespace

void add_branch(const Pass& pass, const LayerBranch& branch) {
  rms_norm({.x = pass.work.branch,
            .weight = branch.norm,
            .out = branch.out,
            .x_type = pass.hidden_type,
            .type = pass.type,
            .rows = pass.rows,
            .cols = branch.cols,
            .x_stride = branch.cols,
            .out_stride = branch.cols,
            .eps = pass.eps,
            .residual = branch.residual,
            .factor = branch.scalar},
           *pass.stream);
}

void multiply(const Pass& pass, const LayerProduct& p) { product(ready_product(pass, p), *pass.stream); }

void normalise(const Pass& pass, const LayerNorm& n) {
  rms_norm({.x = n.x,
            .weight = n.weight,
            .out = n.out,
            .x_type = pass.hidden_type,
            .type = pass.type,
            .rows = pass.rows,
            .cols = n.cols,
            .x_stride = n.cols,
            .out_stride = n.out_stride,
            .eps = pass.eps},
           *pass.stream);
}

float embedding_factor(const ModelConfig& config, DType type) {
  return config.scaled_embedding ? root_factor(config.hidden, type) : 1.0f;
}

float root_factor(int64_t width, DType type) {
  const auto factor = static_cast<float>(std::sqrt(static_cast<double>(width)));
  return type == DType::kBF16  ? bf16_to_f32(f32_to_bf16(factor))
         : type == DType::kF16 ? f16_to_f32(f32_to_f16(factor))
                               : factor;
}

void embed_tokens(const Weight& weight, const EmbeddedTokens& tokens, Stream& stream) {
  if (weight.plain()) {
    embedding({.ids = tokens.ids,
               .table = weight.parts[0].data,
               .out = tokens.out,
               .type = tokens.type,
               .out_type = tokens.out_type,
               .rows = tokens.rows,
               .vocab = weight.rows(),
               .hidden = weight.cols},
              stream);
  } else {
    dequantise({.weight = weight,
                .ids = tokens.ids,
                .first_row = 0,
                .rows = tokens.rows,
                .type = tokens.type,
                .out_type = tokens.out_type,
                .out = tokens.out},
               stream);
  }
  if (tokens.factor == 1.0f) return;
  scale({.x = tokens.out,
         .x_type = tokens.out_type,
         .type = tokens.type,
         .count = tokens.rows * weight.cols,
         .factor = tokens.factor},
        stream);
}

Weight dequantised(const Weight& weight, DType type, void* to, Stream& stream) {
  const int64_t rows = weight.rows();
  dequantise(
      {.weight = weight, .ids = nullptr, .first_row = 0, .rows = rows, .type = type, .out_type = type, .out = to},
      stream);
  return plain_weight(to, type, rows, weight.cols);
}

void qkv_product(const Pass& pass, const LayerWeights& w, const void* hidden) {
  const TraceSpan span(*pass.stream, "qkv");
  multiply(pass, qkv_of(pass, w, hidden));
}

void rotated_qkv_product(const Pass& pass, const LayerWeights& w, const void* hidden, const KvRows& to) {
  const TraceSpan span(*pass.stream, "qkv");
  const ProductParams params = ready_product(pass, qkv_of(pass, w, hidden));
  const RopeParams turn = rope_params(pass, w, 0, pass.rows, to);
  const AttentionSpec& a = w.spec.attention();
  if (a.gated_output || a.k_is_v || !a.makes_rows()) {
    product(params, *pass.stream);
    rope(turn, *pass.stream);
    keys_of_values(pass, w, 0, pass.rows, to);
  } else {
    rotated_product(params, turn, *pass.stream);
  }
}

void rotate_rows(const Pass& pass, const LayerWeights& w, int64_t first, int64_t rows, const KvRows& to) {
  rope(rope_params(pass, w, first, rows, to), *pass.stream);
  keys_of_values(pass, w, first, rows, to);
}

void gate_output(const Pass& pass, const LayerWeights& w) {
  if (!w.spec.attention().gated_output) return;
  const AttentionSpec& a = w.spec.attention();
  gate_rows({.y = pass.work.attention,
             .gate = pass.at(pass.work.qkv, a.qkv_width()),
             .type = pass.type,
             .rows = pass.rows,
             .heads = a.heads,
             .head_dim = a.head_dim,
             .gate_stride = a.in_width(),
             .gate_head_stride = a.head_dim},
            *pass.stream);
}

void attention_output(const Pass& pass, const LayerWeights& w, const void* residual, void* out) {
  add_product(pass,
              {.x = pass.work.attention, .weight = w.output, .bias = w.output_bias, .residual = residual, .out = out},
              w.output_norm);
}

void feed_forward(const Pass& pass, const LayerWeights& w, void* hidden) {
  const LayerWork& work = pass.work;
  const std::optional<ExpertsSpec>& experts = w.spec.ffn.experts;
  const auto activate = [&] {
    LayerProduct first = {.x = hidden, .weight = w.gate_up, .out = work.gate_up, .norm = w.ffn_norm};
    if (experts && experts->shared) first.x = work.normed, first.norm = nullptr;
    ProductParams gated = ready_product(pass, first);
    gated.activation = w.spec.ffn.activation;
    gated_product(gated, work.activated, *pass.stream);
  };
  if (experts) {
    const auto dense = [&] {
      activate();
      multiply(pass, {.x = work.activated, .weight = w.down, .out = work.branch, .wide = true});
    };
    return (experts->beside ? experts_beside : experts_forward)(pass, w, dense, hidden);
  }
  activate();
  add_product(pass, {.x = work.activated, .weight = w.down, .residual = hidden, .out = hidden}, w.down_norm, w.scalar);
}

void layer_output(const Pass& pass, const LayerWeights& w, void* hidden) {
  const TraceSpan span(*pass.stream, "output, mlp");
  attention_output(pass, w, hidden, hidden);
  feed_forward(pass, w, hidden);
}

void output_logits(const Pass& pass, const void* norm, const Weight& head, const void* hidden, float* logits) {
  const TraceSpan span(*pass.stream, "logits");
  product({.x = hidden,
           .weight = head,
           .out = logits,
           .type = pass.type,
           .out_type = DType::kF32,
           .rows = pass.rows,
           .n = head.rows(),
           .k = head.cols,
           .path = pass.path,
           .norm = norm_of(pass, norm)},
          *pass.stream);
}

void output_logits(const Pass& pass, const Weights& weights, const void* hidden, float* logits) {
  output_logits(pass, weights.final_norm(), weights.head(), hidden, logits);
  if (weights.logit_cap() == 0) return;
  softcap({.x = logits, .count = pass.rows * weights.head().rows(), .cap = weights.logit_cap()}, *pass.stream);
}

AttentionShape attention_shape(const Pass& pass, const AttentionSpec& a) {
  return {.queries = pass.rows,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .q_stride = a.in_width(),
          .type = pass.type,
          .k_type = pass.k_type,
          .v_type = pass.v_type,
          .scale = static_cast<float>(a.scale != 0 ? a.scale : 1.0 / std::sqrt(static_cast<double>(a.head_dim))),
          .window = a.window};
}

}  // namespace headrace
