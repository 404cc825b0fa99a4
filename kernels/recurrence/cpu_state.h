// A slice of a value head's state, [k_dim, kColumns], and one token's step on it, for this folder's *_isa.cc. Sums over
// k_dim are one chain of fused multiply-adds a column, in ascending order. Everything is in the set's own namespace.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/recurrence/cpu_isa.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int kVectors = 4;
constexpr int64_t kColumns = kVectors * kLanes;

HEADRACE_SIMD int64_t key_head(const DeltaShape& shape, int64_t head) {
  return shape.tiled ? head % shape.k_heads : head / (shape.v_heads / shape.k_heads);
}

HEADRACE_SIMD float exp_of(float x) { return exp(splat(x))[0]; }

// The columns of a row of v_dim that a slice has; the others are zero.
struct Columns {
  int64_t of[kVectors];  // elements of each vector
};
HEADRACE_SIMD Columns columns_of(const DeltaShape& shape, const DeltaSlice& slice) {
  Columns columns;
  for (int j = 0; j < kVectors; ++j) {
    const int64_t left = shape.v_dim - slice.first_column - j * kLanes;
    columns.of[j] = left < 0 ? 0 : left < kLanes ? left : kLanes;
  }
  return columns;
}

struct Vectors {
  vf of[kVectors];
};
HEADRACE_SIMD Vectors load_columns(const float* from, const Columns& columns) {
  Vectors values;
  for (int j = 0; j < kVectors; ++j) {
    values.of[j] = columns.of[j] > 0 ? load_some(from + j * kLanes, columns.of[j]) : zero();
  }
  return values;
}
HEADRACE_SIMD void store_columns(float* to, const Vectors& values, const Columns& columns) {
  for (int j = 0; j < kVectors; ++j) {
    if (columns.of[j] > 0) store_some(to + j * kLanes, values.of[j], columns.of[j]);
  }
}
HEADRACE_SIMD Vectors load_row(const float* from) {
  Vectors values;
  for (int j = 0; j < kVectors; ++j) values.of[j] = load(from + j * kLanes);
  return values;
}
HEADRACE_SIMD void store_row(float* to, const Vectors& values) {
  for (int j = 0; j < kVectors; ++j) store(to + j * kLanes, values.of[j]);
}

struct State {
  int64_t k_dim;
  alignas(64) float of[kMaxDeltaKeyDim * kColumns];
};

// `head_state`: [k_dim, v_dim] of the head.
[[maybe_unused]] void load_state(State& state, const DeltaShape& shape, const DeltaSlice& slice,
                                 const float* head_state) {
  const Columns columns = columns_of(shape, slice);
  state.k_dim = shape.k_dim;
  for (int64_t i = 0; i < shape.k_dim; ++i) {
    store_row(state.of + i * kColumns, load_columns(head_state + i * shape.v_dim + slice.first_column, columns));
  }
}
[[maybe_unused]] void store_state(const State& state, const DeltaShape& shape, const DeltaSlice& slice,
                                  float* head_state) {
  const Columns columns = columns_of(shape, slice);
  for (int64_t i = 0; i < shape.k_dim; ++i) {
    store_columns(head_state + i * shape.v_dim + slice.first_column, load_row(state.of + i * kColumns), columns);
  }
}

// One row of S = S' + k d^T, with S' = alpha S: the same for a step and for a replay.
HEADRACE_SIMD Vectors moved_row(const float* row, float alpha, float k, const Vectors& d) {
  Vectors s = load_row(row);
  for (int j = 0; j < kVectors; ++j) s.of[j] = fma(splat(k), d.of[j], s.of[j] * alpha);
  return s;
}

[[maybe_unused]] void replay(State& state, float alpha, const float* k, const Vectors& d) {
  for (int64_t i = 0; i < state.k_dim; ++i) {
    float* const row = state.of + i * kColumns;
    store_row(row, moved_row(row, alpha, k[i], d));
  }
}

struct Token {
  const float *q, *k;
  float alpha, beta;
  Vectors v;
};
struct Stepped {
  Vectors d, o;
};
[[maybe_unused]] Stepped step(State& state, const Token& token) {
  Vectors seen = {};  // S'^T k
  for (int64_t i = 0; i < state.k_dim; ++i) {
    const Vectors s = load_row(state.of + i * kColumns);
    const vf k = splat(token.k[i]);
    for (int j = 0; j < kVectors; ++j) seen.of[j] = fma(s.of[j] * token.alpha, k, seen.of[j]);
  }
  Stepped stepped = {};
  for (int j = 0; j < kVectors; ++j) stepped.d.of[j] = (token.v.of[j] - seen.of[j]) * token.beta;
  for (int64_t i = 0; i < state.k_dim; ++i) {
    float* const row = state.of + i * kColumns;
    const Vectors s = moved_row(row, token.alpha, token.k[i], stepped.d);
    store_row(row, s);
    const vf q = splat(token.q[i]);
    for (int j = 0; j < kVectors; ++j) stepped.o.of[j] = fma(s.of[j], q, stepped.o.of[j]);
  }
  return stepped;
}

}  // namespace

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
