#include "runtime/layers/int8_experts.h"

#include <algorithm>

#include "kernels/experts/op.h"
#include "runtime/layers/experts.h"

namespace headrace {
namespace {

// What the products of a layer's experts share: the rows in the order of the experts.
struct Products {
  const Pass& pass;
  const Int8Experts& room;
  int64_t count, rows;  // of experts; of the set, as int8_group_rows() has them
};

struct Matrices {
  const Weight& weight;
  uint64_t stride;
  const Int8Rows& converted;
  const void* bias;
  uint64_t bias_stride;
};
void multiply(const Products& p, const Matrices& of) {
  Stream& stream = *p.pass.stream;
  if (p.room.lean) {
    int8_weight({.weight = of.weight, .type = p.pass.type, .out = of.converted, .groups = p.count, .stride = of.stride},
                stream);
  }
  int8_grouped_product({.x = p.room.input,
                        .weight = of.converted,
                        .groups = p.room.groups,
                        .bias = of.bias,
                        .bias_stride = of.bias_stride,
                        .tiles = p.room.tiles,
                        .out = p.room.products,
                        .type = p.pass.type,
                        .rows = p.rows,
                        .n = of.weight.rows(),
                        .k = of.weight.cols},
                       stream);
}

// The rows' norms, in 8 bits, in the order of the experts.
void spread_norms(const Pass& pass, const LayerWeights& w, const Int8Experts& room, const Int8Rows& normed,
                  const void* hidden) {
  const ExpertsWork& work = pass.work.experts;
  const int64_t cols = w.experts.gate_up.cols;
  int8_activation({.x = hidden,
                   .input = Int8Input::kNormed,
                   .norm = w.ffn_norm,
                   .eps = pass.eps,
                   .type = pass.type,
                   .rows = pass.rows,
                   .cols = cols,
                   .out = normed},
                  *pass.stream);
  int8_spread({.x = normed,
               .chosen = work.chosen,
               .begin = work.begin,
               .places = work.places,
               .groups = room.groups,
               .out = room.input,
               .rows = pass.rows,
               .used = w.spec.ffn.experts->used,
               .cols = cols},
              *pass.stream);
}

}  // namespace

Int8Experts carve_int8_experts(const ModelConfig& config, const Int8LayerSize& size, BumpAllocator& allocator) {
  const LayerWidths widths = LayerWidths::of(config);
  if (widths.experts == 0 || widths.experts_beside) return {};
  const int64_t hidden = widths.hidden, width = widths.expert_ffn;
  const int64_t rows = int8_group_rows(size.backend, size.rows * widths.used, widths.experts);
  const auto take = [&](uint64_t bytes) { return reinterpret_cast<int8_t*>(allocator.take_bytes(bytes)); };
  const auto values = [&](int64_t n, int64_t k) { return int8_group_values_bytes(size.backend, widths.experts, n, k); };
  const uint64_t gate_up = values(2 * width, hidden), down = values(hidden, width);
  Int8Experts room{.lean = size.lean};
  if (size.lean) {
    room.gate_up = {.values = take(std::max(gate_up, down)),
                    .scales = allocator.take<float>(widths.experts * std::max(2 * width, hidden))};
    room.down = room.gate_up;
  } else {
    room.gate_up = {.values = take(gate_up), .scales = allocator.take<float>(widths.experts * 2 * width)};
    room.down = {.values = take(down), .scales = allocator.take<float>(widths.experts * hidden)};
  }
  room.input = {.values = take(int8_group_rows_bytes(size.backend, rows, std::max(hidden, width))),
                .scales = allocator.take<float>(rows)};
  room.groups = {.first = allocator.take<int32_t>(widths.experts),
                 .end = allocator.take<int32_t>(widths.experts),
                 .count = widths.experts};
  room.tiles = allocator.take<int32_t>(int8_group_tiles(size.backend, rows, widths.experts));
  room.products =
      allocator.take_bytes(static_cast<uint64_t>(rows * std::max(2 * width, hidden)) * dtype_bytes(size.type));
  return room;
}

void int8_expert_weights(const LayerWeights& w, DType type, const Int8Experts& to, Stream& stream) {
  if (to.lean) return;
  const int64_t count = w.spec.ffn.experts->count;
  int8_weight({.weight = w.experts.gate_up,
               .type = type,
               .out = to.gate_up,
               .groups = count,
               .stride = w.experts.gate_up_stride},
              stream);
  int8_weight(
      {.weight = w.experts.down, .type = type, .out = to.down, .groups = count, .stride = w.experts.down_stride},
      stream);
}

void int8_experts_forward(const Pass& pass, const LayerWeights& w, const Int8Experts& experts, const Int8Rows& normed,
                          const std::function<void()>& shared, void* hidden) {
  const ExpertsSpec& spec = *w.spec.ffn.experts;
  Int8Experts room = experts;
  room.groups.count = spec.count;
  score_experts(pass, w, hidden);
  list_experts(pass, w, 0, pass.rows);
  spread_norms(pass, w, room, normed, hidden);
  if (spec.shared) shared();
  const int64_t rows = int8_group_rows(pass.stream->backend(), pass.rows * spec.used, spec.count);
  const Products products = {pass, room, spec.count, rows};
  const ExpertWeights& e = w.experts;
  multiply(products, {e.gate_up, e.gate_up_stride, room.gate_up, e.gate_up_bias, e.gate_up_bias_stride});
  // Rows of no group are converted, too: what they hold is not read.
  int8_activation({.x = room.products,
                   .input = Int8Input::kGated,
                   .type = pass.type,
                   .rows = rows,
                   .cols = spec.width,
                   .out = room.input,
                   .activation = w.spec.ffn.activation},
                  *pass.stream);
  multiply(products, {e.down, e.down_stride, room.down, e.down_bias, e.down_bias_stride});
  add_experts({.y = room.products,
               .places = pass.work.experts.places,
               .shares = pass.work.experts.shares,
               .residual = hidden,
               .out = hidden,
               .type = pass.hidden_type,
               .y_type = pass.type,
               .rows = pass.rows,
               .used = spec.used,
               .cols = w.experts.down.rows(),
               .shared = shared_output(pass, w, 0)},
              *pass.stream);
}

}  // namespace headrace
