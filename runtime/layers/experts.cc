#include "runtime/layers/experts.h"

#include <algorithm>
#include <cmath>

#include "kernels/experts/slab.h"

namespace headrace {
namespace {

// Rows [first, first + rows) of a pass, which go through the experts together.
struct Part {
  int64_t first, rows;
};

// Of experts beside a dense part, the router's input is divided by the root of its width; so are the scores then.
float score_scale(const LayerWeights& w) {
  if (!w.spec.ffn.experts->beside) return 1.0f;
  return static_cast<float>(1 / std::sqrt(static_cast<double>(w.experts.router.cols)));
}

// Of the experts in `present`; all of those that have rows, unless there is a slab.
struct Multiplied {
  const int32_t* present;
  int64_t most = 0;  // 0: as many as there may be
  const int32_t* matrices = nullptr;
};

void multiply_experts(const Pass& pass, const LayerWeights& w, const Part& part, const Multiplied& of) {
  const ExpertsSpec& spec = *w.spec.ffn.experts;
  const ExpertsWork& work = pass.work.experts;
  const int64_t shared = w.experts.shared_is_last ? 1 : 0;
  GroupedProductParams product{};
  product.x = pass.at(pass.work.normed, part.first * w.experts.gate_up.cols);
  product.weight = w.experts.gate_up;
  product.stride = w.experts.gate_up_stride;
  product.begin = work.begin;
  product.out = work.gate_up;
  product.type = product.out_type = pass.type;
  product.rows = part.rows * (spec.used + shared);
  product.groups = spec.count + shared;
  product.n = 2 * spec.width;
  product.k = w.experts.gate_up.cols;
  product.most_rows = part.rows;  // a row chooses an expert once at most
  product.present = of.present;
  product.most_listed = of.most;
  product.matrices = of.matrices;
  product.from = work.from;
  product.x_rows = part.rows;
  product.room = work.x;
  product.activation = w.spec.ffn.activation;
  product.bias = w.experts.gate_up_bias;
  product.bias_stride = w.experts.gate_up_bias_stride;
  grouped_gated_product(product, work.activated, *pass.stream);
  product.x = work.activated;
  product.from = nullptr;
  product.weight = w.experts.down;
  product.stride = w.experts.down_stride;
  product.bias = w.experts.down_bias;
  product.bias_stride = w.experts.down_bias_stride;
  product.out = work.y;
  product.out_type = DType::kF32;
  product.n = w.experts.down.rows();
  product.k = spec.width;
  grouped_product(product, *pass.stream);
}

// What is in the slab, and what has to be fetched, is known on the device alone, so the rounds are those of a part that
// uses as many experts as it may.
void multiply_rounds(const Pass& pass, const LayerWeights& w, const Part& part) {
  const ExpertsSpec& spec = *w.spec.ffn.experts;
  const ExpertSlab& slab = *w.experts.slab;
  const bool shared = w.experts.shared_is_last;
  const int64_t used = std::min(spec.count, part.rows * spec.used);
  seat_experts({.slab = slab,
                .present = pass.work.experts.present,
                .listed = used + (shared ? 1 : 0),
                .count = spec.count,
                .shared = shared},
               *pass.stream);
  const int64_t most = std::min(used, slab.slots);
  for (int64_t round = 0; round < slab_rounds(slab.slots, used); ++round) {
    fetch_experts({.slab = slab, .round = round, .most = most}, *pass.stream);
    multiply_experts(pass, w, part,
                     {slab.rounds + round * (slab.slots + 1), most + (shared && round == 0 ? 1 : 0), slab.matrices});
  }
}

// The scores of all experts, by the norm of `hidden` with this weight -> pass.work.normed.
void score_by(const Pass& pass, const LayerWeights& w, const void* norm, const void* hidden) {
  router({.x = hidden,
          .norm = norm,
          .weight = w.experts.router.parts[0].data,
          .normed = pass.work.normed,
          .scores = pass.work.experts.scores,
          .x_type = pass.hidden_type,
          .type = pass.type,
          .rows = pass.rows,
          .count = w.spec.ffn.experts->scores(),
          .cols = w.experts.router.cols,
          .eps = pass.eps,
          .bias = w.experts.router_bias},
         *pass.stream);
}

// to += what the experts make of pass.work.normed, by the scores; `adds`: else to = that.
void add_outputs(const Pass& pass, const LayerWeights& w, bool adds, void* to) {
  const int64_t width = w.experts.router.cols;
  for (Part part{0, 0}; part.first < pass.rows; part.first += part.rows) {
    part.rows = std::min(kExpertPartRows, pass.rows - part.first);
    list_experts(pass, w, part.first, part.rows);
    if (w.experts.slab != nullptr) {
      multiply_rounds(pass, w, part);
    } else {
      multiply_experts(pass, w, part, {pass.work.experts.present});
    }
    SharedOutput shared = shared_output(pass, w, part.first);
    if (w.experts.shared_is_last) {
      shared.y = pass.work.experts.y + part.rows * w.spec.ffn.experts->used * width;
      shared.type = DType::kF32;
    }
    std::byte* const out =
        static_cast<std::byte*>(to) + static_cast<uint64_t>(part.first * width) * dtype_bytes(pass.hidden_type);
    add_experts({.y = pass.work.experts.y,
                 .places = pass.work.experts.places,
                 .shares = pass.work.experts.shares,
                 .residual = adds ? out : nullptr,
                 .out = out,
                 .type = pass.hidden_type,
                 .y_type = DType::kF32,
                 .rows = part.rows,
                 .used = w.spec.ffn.experts->used,
                 .cols = width,
                 .shared = shared},
                *pass.stream);
  }
}

void norm_hidden(const Pass& pass, const LayerWeights& w, const void* weight, const void* hidden) {
  const int64_t width = w.experts.router.cols;
  normalise(pass, {.x = hidden, .weight = weight, .out = pass.work.normed, .cols = width, .out_stride = width});
}

}  // namespace

void score_experts(const Pass& pass, const LayerWeights& w, const void* hidden) {
  score_by(pass, w, w.ffn_norm, hidden);
}

void list_experts(const Pass& pass, const LayerWeights& w, int64_t first, int64_t rows) {
  const ExpertsSpec& spec = *w.spec.ffn.experts;
  const ExpertsWork& work = pass.work.experts;
  choose_experts({.scores = work.scores + first * spec.scores(),
                  .experts = work.chosen,
                  .shares = work.shares,
                  .rows = rows,
                  .count = spec.count,
                  .used = spec.used,
                  .stride = spec.scores(),
                  .normalise = spec.normalised,
                  .factors = w.experts.factors,
                  .scale = score_scale(w)},
                 {.experts = work.chosen,
                  .begin = work.begin,
                  .places = work.places,
                  .pairs = rows * spec.used,
                  .count = spec.count,
                  .used = spec.used,
                  .from = work.from,
                  .present = work.present,
                  .shared = w.experts.shared_is_last && work.from != nullptr},
                 *pass.stream);
}

SharedOutput shared_output(const Pass& pass, const LayerWeights& w, int64_t first) {
  const ExpertsSpec& spec = *w.spec.ffn.experts;
  if (!spec.shared) return {};
  const auto before = static_cast<uint64_t>(first * w.down.rows()) * dtype_bytes(pass.hidden_type);
  return {.y = static_cast<const std::byte*>(pass.work.branch) + before,
          .type = pass.hidden_type,
          .gates = pass.work.experts.scores + first * spec.scores() + spec.count,
          .stride = spec.scores()};
}

void experts_forward(const Pass& pass, const LayerWeights& w, const std::function<void()>& shared, void* hidden) {
  score_experts(pass, w, hidden);
  if (w.spec.ffn.experts->shared && !w.experts.shared_is_last) shared();
  add_outputs(pass, w, true, hidden);
}

void experts_beside(const Pass& pass, const LayerWeights& w, const std::function<void()>& dense, void* hidden) {
  const int64_t width = w.experts.router.cols;
  dense();
  RmsNormParams norm = {.x = pass.work.branch,
                        .weight = w.experts.dense_norm,
                        .out = pass.work.dense,
                        .x_type = pass.hidden_type,
                        .type = pass.type,
                        .rows = pass.rows,
                        .cols = width,
                        .x_stride = width,
                        .out_stride = width,
                        .eps = pass.eps,
                        .wide = true};
  rms_norm(norm, *pass.stream);
  score_by(pass, w, w.experts.router_scale, hidden);
  norm_hidden(pass, w, w.experts.norm, hidden);
  add_outputs(pass, w, false, pass.work.branch);
  norm.weight = w.experts.output_norm;
  norm.residual = pass.work.dense;
  rms_norm(norm, *pass.stream);
  norm.x = pass.work.dense;
  norm.weight = w.down_norm;
  norm.residual = norm.out = hidden;
  norm.factor = w.scalar;
  rms_norm(norm, *pass.stream);
}

}  // namespace headrace
