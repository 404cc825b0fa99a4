#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/for_rows.h"
#include "kernels/experts/bodies.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

float load(const void* data, int64_t element, DType type) {
  switch (type) {
    case DType::kF16:
      return f16_to_f32(static_cast<const f16*>(data)[element]);
    case DType::kBF16:
      return bf16_to_f32(static_cast<const bf16*>(data)[element]);
    default:
      return static_cast<const float*>(data)[element];
  }
}

void store(void* data, int64_t element, DType type, float value) {
  switch (type) {
    case DType::kF16:
      static_cast<f16*>(data)[element] = f32_to_f16(value);
      return;
    case DType::kBF16:
      static_cast<bf16*>(data)[element] = f32_to_bf16(value);
      return;
    default:
      static_cast<float*>(data)[element] = value;
  }
}

// A NaN is the lowest score, so that experts are valid and differ even then.
float clean(float score) { return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score; }

void choose(const float* scores, const RouteParams& p, int32_t* experts) {
  bool chosen[kMaxExperts] = {};
  for (int64_t rank = 0; rank < p.used; ++rank) {
    int64_t best = -1;
    for (int64_t i = 0; i < p.count; ++i)
      if (!chosen[i] && (best < 0 || clean(scores[i]) > clean(scores[best]))) best = i;
    chosen[best] = true;
    experts[rank] = static_cast<int32_t>(best);
  }
}

}  // namespace

void route(const RouteParams& params, ThreadPool& pool) {
  for_rows(pool, params.rows, params.count * (params.used + 16), [&](int64_t row) {
    const float* const scores = params.scores + row * params.stride;
    int32_t* const experts = params.experts + row * params.used;
    float* const shares = params.shares + row * params.used;
    choose(scores, params, experts);
    const float largest = scores[experts[0]];
    float sum = 0;
    for (int64_t i = 0; i < params.count; ++i) sum += std::exp((scores[i] - largest) * params.scale);
    float of_chosen = 0;
    for (int64_t r = 0; r < params.used; ++r) {
      shares[r] = std::exp((scores[experts[r]] - largest) * params.scale) / sum;
      of_chosen += shares[r];
    }
    for (int64_t r = 0; r < params.used; ++r) {
      if (params.normalise) shares[r] /= of_chosen;
      if (params.factors != nullptr) shares[r] *= params.factors[experts[r]];
    }
  });
}

void list_pairs(const ListPairsParams& params, ThreadPool&) {
  std::fill(params.begin, params.begin + params.count + 1, 0);
  for (int64_t i = 0; i < params.pairs; ++i) {
    const int64_t expert = params.experts[i];
    CHECK(expert >= 0 && expert < params.count, "expert=", expert, " of ", params.count);
    ++params.begin[expert + 1];
  }
  for (int64_t e = 0; e < params.count; ++e) params.begin[e + 1] += params.begin[e];
  int32_t next[kMaxExperts];
  std::copy(params.begin, params.begin + params.count, next);
  for (int64_t i = 0; i < params.pairs; ++i) {
    params.places[i] = next[params.experts[i]]++;
    if (params.from != nullptr) params.from[params.places[i]] = static_cast<int32_t>(i / params.used);
  }
  if (params.shared) params.begin[params.count + 1] = static_cast<int32_t>(params.all_places());
  if (params.from != nullptr) std::iota(params.from + params.pairs, params.from + params.all_places(), 0);
  if (params.present == nullptr) return;
  int32_t* present = params.present;
  for (int64_t e = 0; e < params.all_experts(); ++e) {
    if (params.begin[e] < params.begin[e + 1]) *present++ = static_cast<int32_t>(e);
  }
  std::fill(present, params.present + params.most_present(), -1);
}

void add_experts(const AddExpertsParams& params, ThreadPool& pool) {
  for_rows(pool, params.rows, params.cols * params.used, [&](int64_t row) {
    const int32_t* const places = params.places + row * params.used;
    const float* const shares = params.shares + row * params.used;
    const SharedOutput& shared = params.shared;
    const float share = shared.y == nullptr ? 0 : 1 / (1 + std::exp(-shared.gates[row * shared.stride]));
    for (int64_t col = 0; col < params.cols; ++col) {
      float sum = 0;
      for (int64_t r = 0; r < params.used; ++r)
        sum = std::fma(shares[r], load(params.y, places[r] * params.cols + col, params.y_type), sum);
      const int64_t element = row * params.cols + col;
      if (shared.y != nullptr) sum = std::fma(share, load(shared.y, element, shared.type), sum);
      if (params.residual != nullptr) sum = load(params.residual, element, params.type) + sum;
      store(params.out, element, params.type, sum);
    }
  });
}

}  // namespace headrace::kernels::cpu
