#include "runtime/draft/layer.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/op.h"
#include "runtime/draft/attention.h"
#include "runtime/speculation/tree.h"

namespace headrace {

DraftLayerWork DraftLayerWork::carve(const DraftLayerSizes& sizes, int64_t rows, int64_t queries, int64_t context,
                                     BumpAllocator& allocator) {
  const auto rows_of = [&](int64_t width) { return allocator.take_bytes(sizes.bytes(rows * width)); };
  DraftLayerWork work;
  const LayerWidths widths = {.heads = sizes.heads, .q = sizes.attended()};
  work.rope = RopeTables::carve({}, sizes.head_dim, context, allocator);
  work.normed = rows_of(sizes.hidden);
  work.qkv = rows_of(sizes.qkv_width());
  work.attention = rows_of(sizes.attended());
  work.gate_up = rows_of(2 * sizes.ffn);
  work.activated = rows_of(sizes.ffn);
  work.logits = allocator.take<float>(rows * sizes.vocab);
  work.state = carve_states(widths, queries, allocator);
  work.scratch = carve_states(widths, queries * kDraftSegmentsPerLaunch, allocator);
  return work;
}

uint64_t DraftLayer::product_bytes(const ProductPlace& place, const DraftLayerSizes& sizes, int64_t prompt_tokens,
                                   std::initializer_list<Product> own) {
  uint64_t most = 0;
  const auto add = [&](const Product& p) {
    ProductParams params{};
    params.type = sizes.type;
    params.out_type = p.out_f32 ? DType::kF32 : sizes.type;
    params.rows = p.path == ProductPath::kDecode ? kMaxTreeNodes : std::min(prompt_tokens, kDraftPrefillGroupRows);
    params.n = p.n;
    params.k = p.k;
    params.path = p.path;
    most = std::max(most, product_kind_bytes(place, params));
  };
  for (const Product& product : own) add(product);
  add({.n = sizes.hidden, .k = sizes.attended()});
  add({.n = 2 * sizes.ffn, .k = sizes.hidden});
  add({.n = sizes.hidden, .k = sizes.ffn});
  add({.n = sizes.vocab, .k = sizes.hidden, .out_f32 = true});
  return most;
}

void DraftLayer::fill_rope(const RopeConfig& rope, int64_t max_positions) const {
  work_.rope.fill(rope, max_positions, compute_);
}

ProductParams DraftLayer::params_of(const Product& p) const {
  return {
      .x = p.x,
      .weight = p.w,
      .bias = p.bias,
      .residual = p.residual,
      .out = p.out,
      .type = sizes_.type,
      .out_type = p.out_f32 ? DType::kF32 : sizes_.type,
      .rows = p.rows,
      .n = p.n,
      .k = p.k,
      .path = p.path,
      .norm = {
          .weight = p.norm, .x_type = sizes_.type, .eps = static_cast<float>(sizes_.rms_eps), .room = work_.normed}};
}
void DraftLayer::multiply(const Product& p) const { product(params_of(p), compute_); }

void DraftLayer::normalise(const void* x, const void* weight, void* out, int64_t rows, int64_t cols,
                           int64_t out_stride) const {
  rms_norm({.x = x,
            .weight = weight,
            .out = out,
            .x_type = sizes_.type,
            .type = sizes_.type,
            .rows = rows,
            .cols = cols,
            .x_stride = cols,
            .out_stride = out_stride,
            .eps = static_cast<float>(sizes_.rms_eps)},
           compute_);
}

void DraftLayer::rotate(void* qkv, const int32_t* positions, int64_t rows, const KvRows& to) const {
  std::byte* const q = static_cast<std::byte*>(qkv);
  std::byte* const k = q + sizes_.bytes(sizes_.attended());
  rope({.q = q,
        .k = k,
        .v = k + sizes_.bytes(sizes_.kv_heads * sizes_.head_dim),
        .positions = positions,
        .cos_sin = work_.rope.cos_sin,
        .k_out = to.k,
        .v_out = to.v,
        .type = sizes_.type,
        .k_type = sizes_.type,
        .v_type = sizes_.type,
        .rows = rows,
        .heads = sizes_.heads,
        .kv_heads = sizes_.kv_heads,
        .head_dim = sizes_.head_dim,
        .qkv_stride = sizes_.qkv_width(),
        .table_rows = context_,
        .out_row_stride = to.row_stride,
        .out_head_stride = to.head_stride,
        .out_first = to.first},
       compute_);
}

void DraftLayer::rotate_into(const DraftCache& cache, void* qkv, const int32_t* positions, int64_t position,
                             int64_t rows) const {
  for (int64_t done = 0; done < rows;) {  // the ring may wrap within the rows
    const DraftCache::Run run = cache.ring_run(0, position + done);
    const int64_t here = std::min(run.rows, rows - done);
    rotate(static_cast<std::byte*>(qkv) + sizes_.bytes(done * sizes_.qkv_width()), positions + done, here, run.to);
    done += here;
  }
}

void DraftLayer::rotate_queries(void* q, const int32_t* positions, int64_t rows) const {
  RopeParams turn{};
  turn.q = q;
  turn.positions = positions;
  turn.cos_sin = work_.rope.cos_sin;
  turn.type = turn.k_type = turn.v_type = sizes_.type;
  turn.rows = rows;
  turn.heads = sizes_.heads;
  turn.head_dim = sizes_.head_dim;
  turn.qkv_stride = sizes_.attended();
  turn.table_rows = context_;
  rope(turn, compute_);
}

AttentionShape DraftLayer::attention_shape(int64_t rows, int64_t q_stride, const RowShape& kv) const {
  return {.queries = rows,
          .heads = sizes_.heads,
          .kv_heads = sizes_.kv_heads,
          .head_dim = sizes_.head_dim,
          .q_stride = q_stride,
          .type = sizes_.type,
          .k_type = kv.k_type,
          .v_type = kv.v_type,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes_.head_dim)))};
}

void DraftLayer::attend(const DraftRows& rows, const DraftCache& cache) {
  draft_attention({.layer = 0,
                   .shape = attention_shape(rows.count, sizes_.qkv_width(), cache.shape().rows),
                   .q = work_.qkv,
                   .rows = rows,
                   .state = work_.state,
                   .scratch = work_.scratch,
                   .out = work_.attention},
                  cache, &segments_, compute_);
}

void DraftLayer::mlp(const Mlp& m) const {
  const int64_t hidden = sizes_.hidden, ffn = sizes_.ffn;
  gated_product(params_of({.x = m.hidden,
                           .w = m.gate_up,
                           .out = work_.gate_up,
                           .rows = m.rows,
                           .n = 2 * ffn,
                           .k = hidden,
                           .norm = m.norm}),
                work_.activated, compute_);
  multiply({.x = work_.activated,
            .w = m.down,
            .residual = m.hidden,
            .out = m.hidden,
            .rows = m.rows,
            .n = hidden,
            .k = ffn});
}

}  // namespace headrace
