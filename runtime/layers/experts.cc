#include "runtime/layers/experts.h"

#include <algorithm>

#include "kernels/experts/op.h"

namespace headrace {
namespace {

// Rows [first, first + rows) of a pass, which go through the experts together.
struct Part {
  int64_t first, rows;
};

// Lists the part's rows by the experts that they choose.
void list_experts(const Pass& pass, const ExpertsSpec& spec, const Part& part) {
  const ExpertsWork& work = pass.work.experts;
  choose_experts({.scores = work.scores + part.first * spec.count,
                  .experts = work.chosen,
                  .shares = work.shares,
                  .rows = part.rows,
                  .count = spec.count,
                  .used = spec.used,
                  .normalise = spec.normalised},
                 {.experts = work.chosen,
                  .begin = work.begin,
                  .places = work.places,
                  .pairs = part.rows * spec.used,
                  .count = spec.count,
                  .used = spec.used,
                  .from = work.from,
                  .present = work.present},
                 *pass.stream);
}

void multiply_experts(const Pass& pass, const LayerWeights& w, const Part& part) {
  const ExpertsSpec& spec = *w.spec.ffn.experts;
  const ExpertsWork& work = pass.work.experts;
  GroupedProductParams product{};
  product.x = pass.at(pass.work.normed, part.first * w.experts.gate_up.cols);
  product.weight = w.experts.gate_up;
  product.stride = w.experts.gate_up_stride;
  product.begin = work.begin;
  product.out = work.gate_up;
  product.type = product.out_type = pass.type;
  product.rows = part.rows * spec.used;
  product.groups = spec.count;
  product.n = 2 * spec.width;
  product.k = w.experts.gate_up.cols;
  product.most_rows = part.rows;  // a row chooses an expert once at most
  product.present = work.present;
  product.from = work.from;
  product.x_rows = part.rows;
  product.room = work.x;
  grouped_gated_product(product, work.activated, *pass.stream);
  product.x = work.activated;
  product.from = nullptr;
  product.weight = w.experts.down;
  product.stride = w.experts.down_stride;
  product.out = work.y;
  product.out_type = DType::kF32;
  product.n = w.experts.down.rows();
  product.k = spec.width;
  grouped_product(product, *pass.stream);
}

}  // namespace

void score_experts(const Pass& pass, const LayerWeights& w, const void* hidden) {
  router({.x = hidden,
          .norm = w.ffn_norm,
          .weight = w.experts.router.parts[0].data,
          .normed = pass.work.normed,
          .scores = pass.work.experts.scores,
          .x_type = pass.hidden_type,
          .type = pass.type,
          .rows = pass.rows,
          .count = w.spec.ffn.experts->count,
          .cols = w.experts.router.cols,
          .eps = pass.eps},
         *pass.stream);
}

void experts_forward(const Pass& pass, const LayerWeights& w, void* hidden) {
  const ExpertsSpec& spec = *w.spec.ffn.experts;
  const int64_t width = w.experts.router.cols;
  score_experts(pass, w, hidden);
  for (Part part{0, 0}; part.first < pass.rows; part.first += part.rows) {
    part.rows = std::min(kExpertPartRows, pass.rows - part.first);
    list_experts(pass, spec, part);
    multiply_experts(pass, w, part);
    std::byte* const to =
        static_cast<std::byte*>(hidden) + static_cast<uint64_t>(part.first * width) * dtype_bytes(pass.hidden_type);
    add_experts({.y = pass.work.experts.y,
                 .places = pass.work.experts.places,
                 .shares = pass.work.experts.shares,
                 .residual = to,
                 .out = to,
                 .type = pass.hidden_type,
                 .y_type = DType::kF32,
                 .rows = part.rows,
                 .used = spec.used,
                 .cols = width},
                *pass.stream);
  }
}

}  // namespace headrace
