#include <cmath>
#include <cstring>

#include "kernels/cpu/for_rows.h"
#include "kernels/recurrence/bodies.h"
#include "kernels/recurrence/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

float value_of(const void* base, int64_t element, DType type) {
  const std::byte* const from = at(base, element, type);
  float wide;
  if (type == DType::kF32) {
    std::memcpy(&wide, from, sizeof wide);
  } else if (type == DType::kF16) {
    f16 half;
    std::memcpy(&half, from, sizeof half);
    wide = f16_to_f32(half);
  } else {
    bf16 half;
    std::memcpy(&half, from, sizeof half);
    wide = bf16_to_f32(half);
  }
  return wide;
}

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// Calls body(slice) for all slices of all value heads.
template <typename Body>
void for_slices(ThreadPool& pool, const DeltaShape& shape, const Body& body) {
  const int64_t columns = HEADRACE_PICK_ISA(recurrence_kernels).columns, slices = ceil_div(shape.v_dim, columns);
  pool.parallel_for(shape.v_heads * slices, [&](int64_t index, int) {
    body(DeltaSlice{index / slices, index % slices * columns});
  });
}

int64_t first_of(const DeltaPath& path) { return path.first != nullptr ? *path.first : 0; }

// Checks what a row's path promises, and returns the number of its ancestors in the pass.
int64_t checked_ancestors(const DeltaPath& path, int64_t row, int64_t pass_rows) {
  const int64_t last = path.positions[row] - *path.committed, own = first_of(path) + row;
  CHECK(last >= 0 && last < path.path_stride, "row=", row, " position=", path.positions[row],
        " committed=", *path.committed);
  const int32_t* const entries = path.path + row * path.path_stride;
  CHECK(entries[last] == own && own < pass_rows, "row=", row, " pass row ", own, " path ends with ", entries[last]);
  for (int64_t j = 0; j < last; ++j) {
    CHECK(entries[j] >= 0 && entries[j] < own, "row=", row, " ancestor ", entries[j], " of pass row ", own);
  }
  return last;
}

// The last three of the convolution state's rows and `count` rows of m behind them: m_row(i) is the i-th.
template <typename MRow>
void move_conv(void* conv, int64_t channels, DType type, int64_t count, const MRow& m_row) {
  const size_t bytes = static_cast<size_t>(channels) * dtype_bytes(type);
  for (int64_t i = 0; i < kDeltaConvRows; ++i) {
    const int64_t from = count + i - kDeltaConvRows;  // below 0: a row of the state that stays
    std::memcpy(at(conv, i * channels, type),
                from < 0 ? at(static_cast<const void*>(conv), (count + i) * channels, type) : m_row(from), bytes);
  }
}

// ---- The inputs of one row
// -------------------------------------------------------------------------------------------

// m of the token and the three before it, the oldest first.
void inputs_of(const DeltaInputsParams& params, int64_t row, const void* (&m)[kDeltaConvRows + 1]) {
  const int64_t channels = params.shape.channels();
  const bool chain = params.path.path == nullptr;
  const int64_t first = chain ? 0 : first_of(params.path);
  const int64_t last = chain ? row : checked_ancestors(params.path, row, params.pass_rows);
  for (int64_t u = 0; u <= kDeltaConvRows; ++u) {
    const int64_t j = last - kDeltaConvRows + u;
    if (j < 0) {
      m[u] = at(params.conv, (kDeltaConvRows + j) * channels, params.type);
      continue;
    }
    const int64_t pass_row = chain ? j : params.path.path[row * params.path.path_stride + j];
    m[u] = pass_row >= first ? at(params.in, (pass_row - first) * params.in_stride, params.type)
                             : at(static_cast<const void*>(params.stored.m), pass_row * channels, params.type);
  }
}

void inputs_row(const DeltaInputsParams& params, int64_t row) {
  const RecurrenceKernels& kernels = HEADRACE_PICK_ISA(recurrence_kernels);
  const DeltaShape& shape = params.shape;
  const int64_t pass_row = (params.path.path != nullptr ? first_of(params.path) : 0) + row;
  const void* m[kDeltaConvRows + 1];
  inputs_of(params, row, m);
  if (params.stored.m != nullptr) {
    std::memcpy(at(params.stored.m, pass_row * shape.channels(), params.type), m[kDeltaConvRows],
                static_cast<size_t>(shape.channels()) * dtype_bytes(params.type));
  }
  const auto convolve = [&](int64_t channel, float* out, int64_t count) {
    const void* part[kDeltaConvRows + 1];
    for (int u = 0; u <= kDeltaConvRows; ++u) part[u] = at(m[u], channel, params.type);
    kernels.convolve(params.type, part, params.conv_weight + channel * (kDeltaConvRows + 1), out, count);
  };
  float* const q = params.q + row * shape.k_width();
  float* const k = params.stored.k + pass_row * shape.k_width();
  convolve(0, q, shape.k_width());
  convolve(shape.k_width(), k, shape.k_width());
  convolve(2 * shape.k_width(), params.v + row * shape.v_width(), shape.v_width());
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.k_dim));
  for (int64_t head = 0; head < shape.k_heads; ++head) {
    kernels.normalise(q + head * shape.k_dim, shape.k_dim, scale);
    kernels.normalise(k + head * shape.k_dim, shape.k_dim, 1.0f);
  }
  const int64_t b = row * params.in_stride + shape.channels() + shape.v_width(), a = b + shape.v_heads;
  for (int64_t head = 0; head < shape.v_heads; ++head) {
    params.beta[row * shape.v_heads + head] = 1.0f / (1.0f + std::exp(-value_of(params.in, b + head, params.type)));
    params.stored.g[pass_row * shape.v_heads + head] =
        params.decay[head] * softplus(value_of(params.in, a + head, params.type) + params.dt_bias[head]);
  }
}

}  // namespace

void delta_inputs(const DeltaInputsParams& params, ThreadPool& pool) {
  pool.parallel_for(params.rows, [&](int64_t row, int) { inputs_row(params, row); });
}

void delta_recurrence(const DeltaRecurrenceParams& params, ThreadPool& pool) {
  for (int64_t row = 0; row < params.rows; ++row) checked_ancestors(params.path, row, params.pass_rows);
  for_slices(pool, params.shape,
             [&](const DeltaSlice& slice) { HEADRACE_PICK_ISA(recurrence_kernels).walk(params, slice); });
}

void delta_commit(const DeltaCommitParams& params, ThreadPool& pool) {
  const DeltaShape& shape = params.shape;
  for (int64_t i = 0; i < params.count; ++i) {
    CHECK(params.source[i] >= 0 && params.source[i] < params.pass_rows, "source=", params.source[i],
          " pass_rows=", params.pass_rows, " i=", i);
  }
  for (int64_t layer = 0; layer < params.layers; ++layer) {
    for_slices(pool, shape,
               [&](const DeltaSlice& slice) { HEADRACE_PICK_ISA(recurrence_kernels).commit(params, layer, slice); });
    if (params.conv == nullptr) continue;
    const int64_t channels = shape.channels();
    move_conv(at(params.conv, layer * kDeltaConvRows * channels, params.type), channels, params.type, params.count,
              [&](int64_t i) {
                const int64_t row = layer * params.pass_rows + params.source[i];
                return at(static_cast<const void*>(params.stored.m), row * channels, params.type);
              });
  }
}

void delta_chunks(const DeltaChunksParams& params, ThreadPool& pool) {
  const DeltaShape& shape = params.shape;
  const int64_t chunks = params.rows / kDeltaChunkRows;
  pool.parallel_for(chunks * shape.v_heads, [&](int64_t index, int) {
    HEADRACE_PICK_ISA(delta_chunk_kernels).matrices(params, index / shape.v_heads, index % shape.v_heads);
  });
  for_slices(pool, shape, [&](const DeltaSlice& slice) { HEADRACE_PICK_ISA(delta_chunk_kernels).walk(params, slice); });
  move_conv(params.conv, shape.channels(), params.type, params.rows,
            [&](int64_t i) { return at(params.m, i * params.m_stride, params.type); });
}

void delta_output(const DeltaOutputParams& params, ThreadPool& pool) {
  pool.parallel_for(params.rows, [&](int64_t row, int) { HEADRACE_PICK_ISA(recurrence_kernels).output(params, row); });
}

}  // namespace headrace::kernels::cpu
