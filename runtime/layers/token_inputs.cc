#include "runtime/layers/token_inputs.h"

#include "kernels/elementwise/op.h"
#include "offload/device/trace.h"

namespace headrace {
namespace {

constexpr float kHalfPower = 0.70710678f;  // of the sum of two parts of equal power

// The projection's rows of these layers.
Weight projection_of(const Weight& all, const TokenLayers& layers, int64_t width, DType type) {
  const int64_t before = layers.first * width * all.cols;
  const auto* const data = static_cast<const std::byte*>(all.parts[0].data);
  return plain_weight(data + static_cast<uint64_t>(before) * dtype_bytes(type), type, layers.count * width, all.cols);
}

}  // namespace

void make_token_inputs(const Pass& pass, const ModelConfig& config, const Weights& weights, const TokenLayers& layers) {
  const TokenInputWeights* const w = weights.token_inputs();
  if (w == nullptr) return;
  const TraceSpan span(*pass.stream, "token inputs");
  const LayerWork& work = pass.work;
  const int64_t width = config.token_width(), rows = pass.rows * layers.count;
  row_ids({.ids = layers.ids,
           .out = work.token_rows,
           .rows = pass.rows,
           .count = layers.count,
           .stride = config.layer_count(),
           .first = layers.first},
          *pass.stream);
  embed_tokens(w->table,
               {.ids = work.token_rows,
                .rows = rows,
                .type = pass.type,
                .out_type = pass.type,
                .out = work.token_inputs,
                .factor = root_factor(width, pass.type)},
               *pass.stream);
  embed_tokens(weights.embedding(),
               {.ids = layers.ids,
                .rows = pass.rows,
                .type = pass.type,
                .out_type = pass.type,
                .out = work.normed,
                .factor = embedding_factor(config, pass.type)},
               *pass.stream);
  const Weight projection = projection_of(w->projection, layers, width, pass.type);
  multiply(pass, {.x = work.normed, .weight = projection, .out = work.token_part});
  // The projection is divided by sqrt(hidden) before it is normalised: the same as a norm with an eps hidden times as
  // large.
  rms_norm({.x = work.token_part,
            .weight = w->norm,
            .out = work.token_inputs,
            .x_type = pass.type,
            .type = pass.type,
            .rows = rows,
            .cols = width,
            .x_stride = width,
            .out_stride = width,
            .eps = pass.eps * static_cast<float>(config.hidden),
            .residual = work.token_inputs},
           *pass.stream);
  scale({.x = work.token_inputs, .x_type = pass.type, .type = pass.type, .count = rows * width, .factor = kHalfPower},
        *pass.stream);
}

void add_token_input(const Pass& pass, const LayerWeights& w, int64_t index, int64_t count, void* hidden) {
  const int64_t width = w.spec.token_width;
  if (width == 0) return;
  const TraceSpan span(*pass.stream, "token input");
  const LayerWork& work = pass.work;
  const int64_t hidden_cols = w.token.gate.cols;
  const void* x = hidden;
  if (pass.hidden_type != pass.type) {
    convert({.in = hidden,
             .out = work.normed,
             .in_type = pass.hidden_type,
             .out_type = pass.type,
             .count = pass.rows * hidden_cols},
            *pass.stream);
    x = work.normed;
  }
  multiply(pass, {.x = x, .weight = w.token.gate, .out = work.token_part});
  silu_mul({.gate_up = work.token_part,
            .out = work.token_part,
            .type = pass.type,
            .rows = pass.rows,
            .cols = width,
            .activation = w.spec.ffn.activation,
            .up = pass.at(work.token_inputs, index * width),
            .gate_stride = width,
            .up_stride = count * width},
           *pass.stream);
  multiply(pass, {.x = work.token_part, .weight = w.token.projection, .out = work.branch, .wide = true});
  add_branch(pass,
             {.norm = w.token.norm, .cols = hidden_cols, .residual = hidden, .out = hidden, .scalar = w.token.scalar});
}

}  // namespace headrace
