#include "runtime/layers/forward.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/op.h"
#include "offload/device/trace.h"
#include "runtime/model/state_groups.h"

namespace headrace {
namespace {

std::byte* at(const Pass& pass, void* base, int64_t elements) {
  return static_cast<std::byte*>(base) + static_cast<uint64_t>(elements) * dtype_bytes(pass.weights->dtype());
}

// Of hidden [rows, hidden].
InputNorm norm_of(const Pass& pass, const void* weight) {
  return {.weight = weight,
          .x_type = pass.hidden_type,
          .eps = static_cast<float>(pass.config->rms_eps),
          .room = pass.work.normed};
}

RopeParams rope_params(const Pass& pass, const LayerWeights& w, int64_t first, int64_t rows, const KvRows& to) {
  const ModelConfig& c = *pass.config;
  const AttentionSpec& a = w.spec.attention();
  const int64_t start = first * a.qkv_width();
  return {.q = at(pass, pass.work.qkv, start),
          .k = at(pass, pass.work.qkv, start + a.q_width()),
          .v = at(pass, pass.work.qkv, start + a.q_width() + a.kv_width()),
          .positions = pass.positions + first,
          .cos_sin = pass.cos_sin,
          .q_table = (rope_tables(c.rope) - 1) * pass.table_rows * a.head_dim,
          .k_out = to.k,
          .v_out = to.v,
          .type = pass.weights->dtype(),
          .k_type = pass.k_type,
          .v_type = pass.v_type,
          .rows = rows,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .qkv_stride = a.qkv_width(),
          .table_rows = pass.table_rows,
          .out_row_stride = to.row_stride,
          .out_head_stride = to.head_stride,
          .out_first = to.first,
          .q_norm = w.q_norm,
          .k_norm = w.k_norm,
          .eps = static_cast<float>(c.rms_eps)};
}

struct Product {
  const void* x;
  const Weight& w;
  const void *bias, *residual;
  void* out;
  int64_t n, k;
  InputNorm norm{};
};

Weight ready_weight(const Pass& pass, const Weight& weight) {
  if (pass.matrix == nullptr || weight.plain()) return weight;
  return dequantised(weight, pass.weights->dtype(), pass.matrix, *pass.stream);
}

// Enqueues what the weight still needs. Only the residual stream has another type than the weights.
ProductParams ready_product(const Pass& pass, const Product& p) {
  const DType type = pass.weights->dtype();
  return {.x = p.x,
          .weight = ready_weight(pass, p.w),
          .bias = p.bias,
          .residual = p.residual,
          .out = p.out,
          .type = type,
          .out_type = p.residual != nullptr ? pass.hidden_type : type,
          .rows = pass.rows,
          .n = p.n,
          .k = p.k,
          .path = pass.path,
          .norm = p.norm};
}
void multiply(const Pass& pass, const Product& p) { product(ready_product(pass, p), *pass.stream); }

Product qkv_of(const Pass& pass, const LayerWeights& w, const void* hidden) {
  return {hidden,
          w.qkv,
          w.qkv_bias,
          nullptr,
          pass.work.qkv,
          w.spec.attention().qkv_width(),
          pass.config->hidden,
          norm_of(pass, w.input_norm)};
}

// The widths of LayerWork's five buffers, in its order.
struct Widths {
  int64_t value[5];
};
Widths work_widths(const ModelConfig& c) {
  const int64_t ffn = c.largest([](const LayerSpec& layer) { return layer.ffn.width; });
  return {{c.hidden, c.largest([](const LayerSpec& layer) { return layer.attention().qkv_width(); }), c.widest_q(),
           2 * ffn, ffn}};
}
uint64_t buffer_bytes(int64_t rows, int64_t width, DType dtype) {
  return round_up(static_cast<uint64_t>(rows * width) * dtype_bytes(dtype), 256);
}

}  // namespace

uint64_t layer_work_bytes(const ModelConfig& config, DType dtype, int64_t rows) {
  uint64_t bytes = 0;
  for (const int64_t width : work_widths(config).value) bytes += buffer_bytes(rows, width, dtype);
  return bytes;
}

uint64_t product_kind_bytes(const ModelConfig& c, DType dtype, const ProductPlace& place, int64_t rows,
                            ProductPath path) {
  uint64_t most = 0;  // of one kind at a time
  const auto add = [&](int64_t n, int64_t k, DType out_type) {
    ProductParams params{};
    params.type = dtype;
    params.out_type = out_type;
    params.rows = rows;
    params.n = n;
    params.k = k;
    params.path = path;
    most = std::max(most, product_kind_bytes(place, params));
  };
  const DType hidden_type = path == ProductPath::kDecode ? DType::kF32 : dtype;
  for (const LayerSpec& layer : c.layers) {
    add(layer.attention().qkv_width(), c.hidden, dtype);
    add(c.hidden, layer.attention().q_width(), hidden_type);
    add(2 * layer.ffn.width, c.hidden, dtype);
    add(c.hidden, layer.ffn.width, hidden_type);
  }
  if (path == ProductPath::kDecode) add(c.vocab, c.hidden, DType::kF32);
  return most;
}

uint64_t product_bytes(const ModelConfig& config, const Weights& weights, Stream& stream, int threads, int64_t rows,
                       ProductPath path) {
  const ProductPlace place = product_place(stream.backend(), threads, weights.keeps_blocks());
  return whole_pages(product_workspace_bytes(stream)) + product_kind_bytes(config, weights.dtype(), place, rows, path);
}

LayerWork layer_work(const ModelConfig& config, DType dtype, int64_t rows, std::byte* memory) {
  LayerWork work;
  void** const views[] = {&work.normed, &work.qkv, &work.attention, &work.gate_up, &work.activated};
  const Widths widths = work_widths(config);
  for (int i = 0; i < 5; ++i) {
    *views[i] = memory;
    memory += buffer_bytes(rows, widths.value[i], dtype);
  }
  return work;
}

void fill_rope_table(const RopeTableRows& to, Stream& stream) {
  const RopeTable table = make_rope_table(*to.rope, to.head_dim, to.max_positions);
  CHECK(table.inv_freq.size() == static_cast<size_t>(to.head_dim / 2));
  stream.copy(to.inv_freq, table.inv_freq.data(), table.inv_freq.size() * sizeof(float), Link::kHostToDevice, "rope");
  RopeTableParams params = {
      .inv_freq = to.inv_freq, .cos_sin = to.cos_sin, .scale = table.scale, .rows = to.rows, .head_dim = to.head_dim};
  rope_table(params, stream);
  if (rope_tables(*to.rope) > 1) {
    params.cos_sin += to.rows * to.head_dim;
    params.beta = to.rope->query_beta;
    params.step = to.rope->query_step;
    rope_table(params, stream);
  }
  stream.synchronize();  // the table's host side goes out of scope
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
  rotated_product(ready_product(pass, qkv_of(pass, w, hidden)), rope_params(pass, w, 0, pass.rows, to), *pass.stream);
}

void rotate_rows(const Pass& pass, const LayerWeights& w, int64_t first, int64_t rows, const KvRows& to) {
  rope(rope_params(pass, w, first, rows, to), *pass.stream);
}

void layer_output(const Pass& pass, const LayerWeights& w, void* hidden) {
  const TraceSpan span(*pass.stream, "output, mlp");
  const int64_t width = pass.config->hidden, ffn = w.spec.ffn.width;
  multiply(pass, {pass.work.attention, w.output, w.output_bias, hidden, hidden, width, w.spec.attention().q_width()});
  gated_product(ready_product(pass, {hidden, w.gate_up, nullptr, nullptr, pass.work.gate_up, 2 * ffn, width,
                                     norm_of(pass, w.ffn_norm)}),
                pass.work.activated, *pass.stream);
  multiply(pass, {pass.work.activated, w.down, nullptr, hidden, hidden, width, ffn});
}

void output_logits(const Pass& pass, const void* hidden, float* logits) {
  const TraceSpan span(*pass.stream, "logits");
  const ModelConfig& c = *pass.config;
  product({.x = hidden,
           .weight = pass.weights->head(),
           .out = logits,
           .type = pass.weights->dtype(),
           .out_type = DType::kF32,
           .rows = pass.rows,
           .n = c.vocab,
           .k = c.hidden,
           .path = pass.path,
           .norm = norm_of(pass, pass.weights->final_norm())},
          *pass.stream);
}

AttentionShape attention_shape(const Pass& pass, const AttentionSpec& a) {
  return {.queries = pass.rows,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .q_stride = a.qkv_width(),
          .type = pass.weights->dtype(),
          .k_type = pass.k_type,
          .v_type = pass.v_type,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)))};
}

AttentionState carve_states(int64_t rows, int64_t heads, int64_t width, BumpAllocator& allocator) {
  return {.o = allocator.take<float>(rows * width), .ml = allocator.take<float>(rows * heads * 2)};
}

RowShape row_shape(const ModelConfig& config, DType k_type, DType v_type, DType exact) {
  const AttentionSpec& a = config.attention();
  return {.layers = StateGroups(config).row_layers(),
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .k_type = k_type,
          .v_type = v_type,
          .exact_type = exact};
}

}  // namespace headrace
