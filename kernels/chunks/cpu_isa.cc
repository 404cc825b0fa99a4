#include "kernels/chunks/cpu_isa.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/with_type.h"
#include "kernels/rows/low_bit.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int64_t kTogether = 4;  // query heads
constexpr int64_t kBatch = 64;    // rows whose scores are held at once
static_assert(kBatch % kLanes == 0);
constexpr float kNone = -__builtin_inff();

HEADRACE_SIMD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HEADRACE_SIMD int64_t padded(int64_t columns) { return (columns + kLanes - 1) / kLanes * kLanes; }

// Up to kTogether query heads of a KV head, and their states of one chunk.
struct Heads {
  int64_t first, count, width;  // width: of a query, zeros at its end
  float q[kTogether * kMaxChunkHeadDim];
  float m[kTogether], l[kTogether];
};

void read_queries(const ScoreChunksParams& call, Heads& heads) {
  heads.width = padded(call.head_dim);
  for (int64_t j = 0; j < kTogether; ++j) {  // beyond the last one: the last again
    const int64_t head = heads.first + smaller(j, heads.count - 1);
    float* to = heads.q + j * heads.width;
    with_type(call.type, [&](auto t) {
      const auto* from = static_cast<const decltype(t)*>(call.q) + head * call.head_dim;
      for (int64_t i = 0; i < call.head_dim; i += kLanes) {
        store(to + i, load_some(from + i, smaller(kLanes, call.head_dim - i)));
      }
    });
    if (call.k_type == DType::kInt4) hadamard(to, call.head_dim);
  }
}

template <typename T>
HEADRACE_SIMD v4 multiply_key(const T* key, int64_t head_dim, const Heads& heads) {
  vf sums[kTogether] = {};
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    const vf some = load_some(key + i, smaller(kLanes, head_dim - i));
    for (int64_t j = 0; j < kTogether; ++j) sums[j] = fma(load(heads.q + j * heads.width + i), some, sums[j]);
  }
  return sum_each(sums[0], sums[1], sums[2], sums[3]);
}

// Rows of one KV head in a segment, from one on.
struct Keys {
  const char* values;
  const f16* parameters;
  int64_t count;
};

Keys keys_at(const ScoreChunksParams& call, const KvSegment& segment, int64_t kv_head, int64_t row, int64_t count) {
  const int64_t bytes = value_bytes(call.k_type, call.head_dim);
  const int64_t index = kv_head * segment.stride_rows + segment.first_row + row;
  const char* plane = static_cast<const char*>(segment.k);
  const auto* parameters = reinterpret_cast<const f16*>(plane + call.kv_heads * segment.stride_rows * bytes);
  return {plane + index * bytes, parameters + index * parameter_count(call.k_type, call.head_dim), count};
}

v4 score_key(const ScoreChunksParams& call, const Heads& heads, const Keys& keys, int64_t row) {
  const int64_t dim = call.head_dim, parameters_each = parameter_count(call.k_type, dim);
  const char* key = keys.values + row * value_bytes(call.k_type, dim);
  v4 four = {};
  if (call.k_type == DType::kInt8) {
    four = multiply_key(reinterpret_cast<const int8_value*>(key), dim, heads) * widen_one(keys.parameters + row);
  } else if (call.k_type == DType::kInt4) {
    float wide[kMaxChunkHeadDim];
    widen_int4(key, keys.parameters + row * parameters_each, dim, wide);
    four = multiply_key(wide, dim, heads);
  } else {
    with_type(call.k_type, [&](auto t) { four = multiply_key(reinterpret_cast<const decltype(t)*>(key), dim, heads); });
  }
  return four * call.scale;
}

// Adds rows with these scores, of which those beyond the last are kNone, to a state.
void add_scores(const float* scores, float* m, float* l) {
  vf most = splat(*m);
  for (int64_t i = 0; i < kBatch; i += kLanes) most = max(most, load(scores + i));
  const float top = largest(most);
  vf sums = zero();
  for (int64_t i = 0; i < kBatch; i += kLanes) {
    const vf score = load(scores + i);
    sums += select(score == kNone, zero(), exp(score - top));  // top may be kNone
  }
  *l = *l * (*m == kNone ? 1.0f : exp(splat(*m - top))[0]) + sum(sums);  // without rows l is 0, or NaN
  *m = top;
}

void add_keys(const ScoreChunksParams& call, const Keys& keys, Heads& heads) {
  for (int64_t first = 0; first < keys.count; first += kBatch) {
    const int64_t rows = smaller(kBatch, keys.count - first);
    float scores[kTogether][kBatch];
    for (int64_t row = 0; row < rows; ++row) {
      const v4 four = score_key(call, heads, keys, first + row);
      for (int64_t j = 0; j < kTogether; ++j) scores[j][row] = four[j];
    }
    for (int64_t j = 0; j < heads.count; ++j) {
      for (int64_t row = rows; row < kBatch; ++row) scores[j][row] = kNone;
      add_scores(scores[j], &heads.m[j], &heads.l[j]);
    }
  }
}

void chunk_state(const ChunkStatesParams& p, int64_t kv_head, int64_t chunk, Heads& heads) {
  const ScoreChunksParams& call = p.all.call;
  for (int64_t j = 0; j < kTogether; ++j) {
    heads.m[j] = kNone;
    heads.l[j] = 0.0f;
  }
  const int64_t begin = chunk * call.chunk_rows, end = smaller(begin + call.chunk_rows, call.rows);
  for (int64_t n = 0; n < p.segment_count; ++n) {
    const KvSegment& segment = p.segments[n];
    const int64_t from = begin > segment.position ? begin - segment.position : 0;
    const int64_t to = smaller(end - segment.position, segment.rows);
    if (from < to) add_keys(call, keys_at(call, segment, kv_head, from, to - from), heads);
  }
  for (int64_t j = 0; j < heads.count; ++j) {
    float* state = p.all.states + ((heads.first + j) * p.all.chunks + chunk) * 2;
    state[0] = heads.m[j];
    state[1] = heads.l[j];
  }
}

void states(const ChunkStatesParams& p, int64_t kv_head, int64_t first, int64_t count) {
  const int64_t group = p.all.call.heads / p.all.call.kv_heads;
  Heads heads;
  for (int64_t head = 0; head < group; head += kTogether) {
    heads.first = kv_head * group + head;
    heads.count = smaller(kTogether, group - head);
    read_queries(p.all.call, heads);
    for (int64_t chunk = first; chunk < first + count; ++chunk) chunk_state(p, kv_head, chunk, heads);
  }
}

}  // namespace

const ChunkKernels chunk_kernels = {states};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
