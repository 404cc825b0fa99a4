// The attention ops for one instruction set: which tiles of rows a block of queries sees, and what its state becomes.
#include "kernels/attention/cpu_isa.h"

#include "kernels/attention/cpu_tile.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

// ---- Segments -------------------------------------------------------------------------------------------------------

// One KV head's rows of a segment, in the plane of K or of V.
struct HeadRows {
  const char* values;
  const f16* parameters;
  int64_t bytes, parameters_each;  // of a row

  HeadRows(const void* plane, DType type, const AttentionShape& shape, const KvSegment& segment, int64_t kv_head)
      : bytes(value_bytes(type, shape.head_dim)), parameters_each(parameter_count(type, shape.head_dim)) {
    const char* base = static_cast<const char*>(plane);
    const int64_t first = kv_head * segment.stride_rows + segment.first_row;
    values = base + first * bytes;
    parameters =
        reinterpret_cast<const f16*>(base + shape.kv_heads * segment.stride_rows * bytes) + first * parameters_each;
  }
};

// first_seen(t, window), and tail_begin(t)
int64_t seen_from(int64_t t, int64_t window) { return window > 0 && t >= window ? t + 1 - window : 0; }
int64_t prefix_end(int64_t t) { return t < kTailWindow ? 0 : (t - kTailWindow) / kPrefixTile * kPrefixTile; }

// The rows of positions [first, end) in a segment, tile by tile.
void see_segment(const AttentionShape& shape, const KvSegment& segment, int64_t kv_head, int64_t first, int64_t limit,
                 Work& w) {
  const HeadRows k(segment.k, w.k_type, shape, segment, kv_head);
  const HeadRows v(segment.v, w.v_type, shape, segment, kv_head);
  const int64_t end = smaller(limit - segment.position, segment.rows);
  for (int64_t begin = larger(first - segment.position, 0) / kTile * kTile; begin < end; begin += kTile) {
    Rows rows;
    rows.apart = false;
    rows.ahead = begin + 2 * kTile <= end ? kTile : 0;
    rows.count = smaller(kTile, end - begin);
    for (int64_t i = 0; i < rows.count; ++i) {
      rows.k[i] = k.values + (begin + i) * k.bytes;
      rows.v[i] = v.values + (begin + i) * v.bytes;
    }
    rows.k_parameters = k.parameters + begin * k.parameters_each;
    rows.v_parameters = v.parameters + begin * v.parameters_each;
    see_tile(rows, segment.position + begin, w);
  }
}

// ---- States ---------------------------------------------------------------------------------------------------------

// into = into + from; an empty `from` changes nothing.
struct State {
  float *o, *m, *l;
};

void fold(const float* o, float m, float l, int64_t dim, const State& into) {
  if (m == kNone) return;
  const float top = *into.m < m ? m : *into.m;
  const vf keep = exp(splat(*into.m - top)), add = exp(splat(m - top));
  for (int64_t i = 0; i < dim; i += kLanes) {
    const int64_t some = smaller(kLanes, dim - i);
    store_some(into.o + i, fma(load_some(o + i, some), add, load_some(into.o + i, some) * keep), some);
  }
  *into.l = *into.l * keep[0] + l * add[0];
  *into.m = top;
}

// ---- The ops --------------------------------------------------------------------------------------------------------

void prefill(const PrefillAttentionParams& params, const AttentionBlock& block) {
  const AttentionShape& shape = params.shape;
  Work w;
  w.scores = pairs(shape) ? Multiply::kPairs : Multiply::kFloats;
  w.weights = pairs(shape) && shape.v_type == DType::kBF16 ? Weights::kRounded : Weights::kFloats;
  w.width = kTile;
  start(shape, params.q, block, w);
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t t = params.first_position + block.first_query + row / block.heads;
    w.first[row] = seen_from(t, shape.window);
    w.limit[row] = t + 1;
  }
  for (int64_t n = 0; n < params.segment_count; ++n) {
    see_segment(shape, params.segments[n], block.kv_head, w.first[0], w.limit[w.rows - 1], w);
  }
  see_sinks(params.sinks, block, w);
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t query = block.first_query + row / block.heads, head = block.first_head + row % block.heads;
    write_out(shape.type, w.o + row * w.stride, w.l[row], w.dim, params.out, (query * shape.heads + head) * w.dim);
  }
}

void prefix(const PrefixAttentionParams& params, int64_t n, const AttentionBlock& block) {
  const AttentionShape& shape = params.shape;
  const KvSegment& segment = params.segments[n];
  Work w;
  w.scores = pairs(shape) ? Multiply::kPairs : Multiply::kFloats;
  w.weights = Weights::kFloats;
  w.width = kTile;
  start(shape, params.q, block, w);
  int64_t first = seen_from(params.positions[block.first_query], shape.window), end = 0;
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t t = params.positions[block.first_query + row / block.heads];
    w.first[row] = seen_from(t, shape.window);
    w.limit[row] = prefix_end(t);
    first = smaller(first, w.first[row]);
    end = larger(end, w.limit[row]);
  }
  see_segment(shape, segment, block.kv_head, first, end, w);
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t query = block.first_query + row / block.heads, head = block.first_head + row % block.heads;
    const int64_t index = (n * shape.queries + query) * shape.heads + head;
    params.scratch.ml[2 * index] = w.m[row];
    params.scratch.ml[2 * index + 1] = w.l[row];
    if (w.m[row] != kNone) {
      if (shape.v_type == DType::kInt4) hadamard(w.o + row * w.stride, w.dim);
      memcpy(params.scratch.o + index * w.dim, w.o + row * w.stride, size_t(w.dim) * sizeof(float));
    }
  }
}

void fold_prefix(const PrefixAttentionParams& params, int64_t query) {
  const AttentionShape& shape = params.shape;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t to = query * shape.heads + head;
    const State into = {params.state.o + to * shape.head_dim, &params.state.ml[2 * to], &params.state.ml[2 * to + 1]};
    for (int64_t n = 0; n < params.segment_count; ++n) {
      const int64_t from = n * shape.queries * shape.heads + to;
      fold(params.scratch.o + from * shape.head_dim, params.scratch.ml[2 * from], params.scratch.ml[2 * from + 1],
           shape.head_dim, into);
    }
    if (params.out != nullptr) write_out(shape.type, into.o, *into.l, shape.head_dim, params.out, to * shape.head_dim);
  }
}

// Finds the rows of positions [begin, begin + rows->count) along the query's path.
void find_rows(const TailAttentionParams& params, const AttentionBlock& block, int64_t begin, Rows* rows) {
  const AttentionShape& shape = params.shape;
  const int64_t k_bytes = value_bytes(shape.k_type, shape.head_dim);
  const int64_t v_bytes = value_bytes(shape.v_type, shape.head_dim);
  const int64_t committed = *params.committed;
  const int32_t* path = params.path + block.first_query * params.path_stride;
  for (int64_t i = 0; i < rows->count; ++i) {
    const int64_t p = begin + i;
    const bool in_ring = p < committed;
    const int64_t row = in_ring ? block.kv_head * params.ring_rows + p % params.ring_rows
                                : path[p - committed] * shape.kv_heads + block.kv_head;
    rows->k[i] = static_cast<const char*>(in_ring ? params.ring_k : params.pass_k) + row * k_bytes;
    rows->v[i] = static_cast<const char*>(in_ring ? params.ring_v : params.pass_v) + row * v_bytes;
  }
}

void tail(const TailAttentionParams& params, const AttentionBlock& block) {
  const AttentionShape& shape = params.shape;
  const int64_t t = params.positions[block.first_query];
  Work w;
  w.scores = Multiply::kFloats;
  w.weights = Weights::kFloats;
  w.width = kTailGroup;
  start(shape, params.q, block, w);
  const int64_t seen = seen_from(t, shape.window);
  for (int64_t row = 0; row < w.rows; ++row) {
    w.first[row] = seen;
    w.limit[row] = t + 1;
  }
  int64_t first = larger(prefix_end(t), seen / kTailGroup * kTailGroup);
  if (params.first != nullptr) first = larger(first, *params.first);
  for (int64_t begin = first; begin <= t; begin += kTailGroup) {
    Rows rows;
    rows.apart = true;
    rows.ahead = 0;
    rows.count = smaller(kTailGroup, t + 1 - begin);
    find_rows(params, block, begin, &rows);
    see_tile(rows, begin, w);
  }
  see_sinks(params.sinks, block, w);
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t index = block.first_query * shape.heads + block.first_head + row;
    memcpy(params.state.o + index * w.dim, w.o + row * w.stride, size_t(w.dim) * sizeof(float));
    params.state.ml[2 * index] = w.m[row];
    params.state.ml[2 * index + 1] = w.l[row];
  }
}

}  // namespace

const AttentionKernels attention_kernels = {prefill, prefix, fold_prefix, tail};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
