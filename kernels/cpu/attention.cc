#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace headrace::kernels::cpu {

namespace {

constexpr int64_t kMaxHeadDim = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float element(const void* data, DType type, int64_t index) {
  switch (type) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return bf16_to_f32(static_cast<const bf16*>(data)[index]);
    case DType::kF16:
      return f16_to_f32(static_cast<const f16*>(data)[index]);
  }
  return 0;
}

void set_element(void* data, DType type, int64_t index, float value) {
  switch (type) {
    case DType::kF32:
      static_cast<float*>(data)[index] = value;
      break;
    case DType::kBF16:
      static_cast<bf16*>(data)[index] = f32_to_bf16(value);
      break;
    case DType::kF16:
      static_cast<f16*>(data)[index] = f32_to_f16(value);
      break;
  }
}

// One row of K and of V: elements from `offset` on.
struct Row {
  const void *k, *v;
  int64_t offset;
};

// One query head: o, m, l of what it has seen.
struct State {
  float o[kMaxHeadDim];
  float m = -kInfinity, l = 0;
};

struct Query {
  const AttentionShape& shape;
  float q[kMaxHeadDim];
  Query(const AttentionShape& s, const void* data, int64_t query, int64_t head) : shape(s) {
    for (int64_t d = 0; d < s.head_dim; ++d) {
      q[d] = element(data, s.type, query * s.q_stride + head * s.head_dim + d);
    }
  }
};

// Online softmax over one tile of `count` rows.
void see_rows(const Query& query, const Row* rows, int64_t count, State* state) {
  const AttentionShape& s = query.shape;
  float score[kPrefixTile];
  float m = state->m;
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int64_t d = 0; d < s.head_dim; ++d) sum += query.q[d] * element(rows[i].k, s.k_type, rows[i].offset + d);
    score[i] = sum * s.scale;
    m = std::max(m, score[i]);
  }
  const float alpha = std::exp(state->m - m);
  state->l *= alpha;
  for (int64_t d = 0; d < s.head_dim; ++d) state->o[d] *= alpha;
  for (int64_t i = 0; i < count; ++i) {
    const float p = std::exp(score[i] - m);
    state->l += p;
    for (int64_t d = 0; d < s.head_dim; ++d) state->o[d] += p * element(rows[i].v, s.v_type, rows[i].offset + d);
  }
  state->m = m;
}

// Rows [0, end) of a segment, in tiles.
void see_segment(const Query& query, const KvSegment& segment, int64_t kv_head, int64_t end, State* state) {
  for (int64_t begin = 0; begin < end; begin += kPrefixTile) {
    Row rows[kPrefixTile];
    const int64_t count = std::min(kPrefixTile, end - begin);
    for (int64_t i = 0; i < count; ++i) {
      rows[i] = {segment.k, segment.v, (kv_head * segment.stride_rows + begin + i) * query.shape.head_dim};
    }
    see_rows(query, rows, count, state);
  }
}

// into = into + from; an empty `from` changes nothing.
void fold(const float* o, float m, float l, int64_t head_dim, float* into_o, float* into_m, float* into_l) {
  if (m == -kInfinity) return;
  const float top = std::max(*into_m, m);
  const float a = std::exp(*into_m - top), b = std::exp(m - top);
  for (int64_t d = 0; d < head_dim; ++d) into_o[d] = into_o[d] * a + o[d] * b;
  *into_l = *into_l * a + l * b;
  *into_m = top;
}

}  // namespace

void prefill_attention(const PrefillAttentionParams& params, ThreadPool& pool) {
  const AttentionShape& s = params.shape;
  pool.parallel_for(s.queries * s.heads, [&](int64_t index, int) {
    const int64_t i = index / s.heads, head = index % s.heads;
    const Query query(s, params.q, i, head);
    State state = {};
    for (int64_t n = 0; n < params.segment_count; ++n) {
      const KvSegment& segment = params.segments[n];
      const int64_t end = std::min<int64_t>(params.first_position + i + 1 - segment.position, segment.rows);
      see_segment(query, segment, head / (s.heads / s.kv_heads), end, &state);
    }
    for (int64_t d = 0; d < s.head_dim; ++d) {
      set_element(params.out, s.type, index * s.head_dim + d, state.o[d] / state.l);
    }
  });
}

void prefix_attention(const PrefixAttentionParams& params, ThreadPool& pool) {
  const AttentionShape& s = params.shape;
  pool.parallel_for(s.queries * s.heads, [&](int64_t index, int) {
    const int64_t i = index / s.heads, head = index % s.heads;
    const Query query(s, params.q, i, head);
    for (int64_t n = 0; n < params.segment_count; ++n) {
      const KvSegment& segment = params.segments[n];
      const int64_t end = std::min<int64_t>(tail_begin(params.positions[i]) - segment.position, segment.rows);
      State state = {};
      see_segment(query, segment, head / (s.heads / s.kv_heads), end, &state);
      fold(state.o, state.m, state.l, s.head_dim, params.state.o + index * s.head_dim, &params.state.ml[2 * index],
           &params.state.ml[2 * index + 1]);
    }
  });
}

void tail_attention(const TailAttentionParams& params, ThreadPool& pool) {
  const AttentionShape& s = params.shape;
  const int64_t committed = *params.committed;
  pool.parallel_for(s.queries * s.heads, [&](int64_t index, int) {
    const int64_t i = index / s.heads, head = index % s.heads, kv_head = head / (s.heads / s.kv_heads);
    const Query query(s, params.q, i, head);
    const int64_t t = params.positions[i];
    State state = {};
    for (int64_t begin = tail_begin(t); begin <= t; begin += kTailGroup) {
      Row rows[kTailGroup];
      const int64_t count = std::min(kTailGroup, t + 1 - begin);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t p = begin + j;
        if (p < committed) {
          rows[j] = {params.ring_k, params.ring_v, (kv_head * params.ring_rows + p % params.ring_rows) * s.head_dim};
        } else {
          const int64_t row = params.path[i * params.path_stride + p - committed];
          rows[j] = {params.pass_k, params.pass_v, (row * s.kv_heads + kv_head) * s.head_dim};
        }
      }
      see_rows(query, rows, count, &state);
    }
    State all;
    std::memcpy(all.o, params.state.o + index * s.head_dim, s.head_dim * sizeof(float));
    all.m = params.state.ml[2 * index];
    all.l = params.state.ml[2 * index + 1];
    fold(state.o, state.m, state.l, s.head_dim, all.o, &all.m, &all.l);
    for (int64_t d = 0; d < s.head_dim; ++d) {
      set_element(params.out, s.type, index * s.head_dim + d, all.o[d] / all.l);
    }
  });
}

void clear_state(const ClearStateParams& params, ThreadPool&) {
  const int64_t states = params.queries * params.heads;
  std::fill_n(params.state.o, states * params.head_dim, 0.0f);
  for (int64_t i = 0; i < states; ++i) {
    params.state.ml[2 * i] = -kInfinity;
    params.state.ml[2 * i + 1] = 0.0f;
  }
}

}  // namespace headrace::kernels::cpu
