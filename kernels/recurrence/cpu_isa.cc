#include "kernels/recurrence/cpu_isa.h"

#include "kernels/cpu/with_type.h"
#include "kernels/recurrence/cpu_state.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

HEADRACE_SIMD vf silu(vf x) { return x / (exp(-x) + 1.0f); }

template <typename T>
void convolve_of(const void* const* m, const float* weight, float* out, int64_t channels) {
  constexpr int kWidth = kDeltaConvRows + 1;
  float by_token[kWidth][kLanes] = {};
  for (int64_t c = 0; c < channels; c += kLanes) {
    const int64_t count = channels - c < kLanes ? channels - c : kLanes;
    const float* const weights = weight + c * kWidth;
    if (count == kLanes) {
      for (int i = 0; i < kLanes; ++i) {
        for (int u = 0; u < kWidth; ++u) by_token[u][i] = weights[i * kWidth + u];
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        for (int u = 0; u < kWidth; ++u) by_token[u][i] = weights[i * kWidth + u];
      }
    }
    vf sum = zero();
    for (int u = 0; u < kWidth; ++u) {
      sum = fma(load(by_token[u]), load_some(static_cast<const T*>(m[u]) + c, count), sum);
    }
    store_some(out + c, silu(sum), count);
  }
}

void convolve(DType type, const void* const* m, const float* weight, float* out, int64_t channels) {
  with_type(type, [&](auto t) { convolve_of<decltype(t)>(m, weight, out, channels); });
}

float sum_of_squares(const float* x, int64_t dim) {
  vf squares = zero();
  for (int64_t i = 0; i < dim; i += kLanes) {
    const vf v = load_some(x + i, dim - i < kLanes ? dim - i : kLanes);
    squares = fma(v, v, squares);
  }
  return sum(squares);
}

void normalise(float* x, int64_t dim, float scale) {
  const float factor = scale / __builtin_sqrtf(sum_of_squares(x, dim) + 1e-6f);
  for (int64_t i = 0; i < dim; ++i) x[i] *= factor;
}

// What a token of a slice has in the pass rows.
struct Stored {
  const DeltaShape& shape;
  const DeltaRows& rows;
  const DeltaSlice& slice;
  Columns columns;

  float alpha(int64_t row) const { return exp_of(rows.g[row * shape.v_heads + slice.head]); }
  const float* k(int64_t row) const {
    return rows.k + (row * shape.k_heads + key_head(shape, slice.head)) * shape.k_dim;
  }
  float* d(int64_t row) const { return rows.d + (row * shape.v_heads + slice.head) * shape.v_dim + slice.first_column; }
  void replay_row(State& state, int64_t row) const { replay(state, alpha(row), k(row), load_columns(d(row), columns)); }
};

void walk(const DeltaRecurrenceParams& params, const DeltaSlice& slice) {
  const DeltaShape& shape = params.shape;
  const Stored stored = {shape, params.stored, slice, columns_of(shape, slice)};
  const int64_t head_state = slice.head * shape.k_dim * shape.v_dim;
  const bool has_ahead = params.ahead.state != nullptr && *params.ahead.row >= 0;
  State state;
  constexpr int32_t kCommitted = -1, kNowhere = -2;
  int32_t at = kNowhere;  // the pass row whose state is held
  for (int64_t row = 0; row < params.rows; ++row) {
    const int32_t* const path = params.path.path + row * params.path.path_stride;
    const int64_t last = params.path.positions[row] - *params.path.committed;
    const int32_t own = path[last], parent = last > 0 ? path[last - 1] : kCommitted;
    if (at != parent) {
      const int64_t length = has_ahead ? *params.ahead.length : 0;
      const bool from_ahead = length > 0 && length <= last && path[length - 1] == *params.ahead.row;
      load_state(state, shape, slice, (from_ahead ? params.ahead.state : params.state) + head_state);
      for (int64_t j = from_ahead ? length : 0; j < last; ++j) stored.replay_row(state, path[j]);
    }
    const int64_t value = row * shape.v_heads + slice.head, element = value * shape.v_dim + slice.first_column;
    const float* const q = params.q + (row * shape.k_heads + key_head(shape, slice.head)) * shape.k_dim;
    const Stepped stepped = step(state, {q, stored.k(own), stored.alpha(own), params.beta[value],
                                         load_columns(params.v + element, stored.columns)});
    store_columns(stored.d(own), stepped.d, stored.columns);
    store_columns(params.o + element, stepped.o, stored.columns);
    at = own;
  }
}

void commit(const DeltaCommitParams& params, int64_t layer, const DeltaSlice& slice) {
  const DeltaShape& shape = params.shape;
  const Stored stored = {shape, params.stored, slice, columns_of(shape, slice)};
  float* const head_state = params.state + (layer * shape.v_heads + slice.head) * shape.k_dim * shape.v_dim;
  State state;
  load_state(state, shape, slice, head_state);
  for (int64_t i = 0; i < params.count; ++i) stored.replay_row(state, layer * params.pass_rows + params.source[i]);
  store_state(state, shape, slice, head_state);
}

template <typename Z, typename T>
void output_of(const DeltaOutputParams& params, int64_t row) {
  const int64_t dim = params.shape.v_dim;
  for (int64_t head = 0; head < params.shape.v_heads; ++head) {
    const int64_t first = (row * params.shape.v_heads + head) * dim;
    const float* const o = params.o + first;
    const Z* const z = static_cast<const Z*>(params.z) + row * params.z_stride + head * dim;
    T* const out = static_cast<T*>(params.out) + first;
    const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(o, dim) / static_cast<float>(dim) + params.eps);
    for (int64_t i = 0; i < dim; i += kLanes) {
      const int64_t count = dim - i < kLanes ? dim - i : kLanes;
      const vf normed = load_some(o + i, count) * scale * load_some(params.weight + i, count);
      store_some(out + i, normed * silu(load_some(z + i, count)), count);
    }
  }
}

void output(const DeltaOutputParams& params, int64_t row) {
  with_type(params.z_type,
            [&](auto z) { with_type(params.type, [&](auto t) { output_of<decltype(z), decltype(t)>(params, row); }); });
}

}  // namespace

const RecurrenceKernels recurrence_kernels = {kColumns, convolve, normalise, walk, commit, output};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
