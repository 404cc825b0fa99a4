// Flash attention (Dao et al. 2022): walks the keys in tiles; each row of queries keeps its running maximum m, sum l
// and output o. Two products a tile: scores = q k^T, with the tile's keys transposed so that lanes are keys, and o +=
// weights v, with lanes along head_dim. Both use one micro-kernel (multiply.h).
//
// With bf16 q and k, and the instruction for it, scores come from pairs of bf16. In prefill, with bf16 v as well, the
// weights are rounded to bf16 for the product with v (their sum is not), as flash attention on GPUs does.
//
// The prefix may be low-bit rows (kernels/rows/op.h). The products take int8 values as they are: a key's scale
// multiplies its score, a value's scale its weight. int4 rows are widened; the query is rotated as they are, and what
// they add to o is rotated back.
#include "kernels/attention/cpu_isa.h"

#include "kernels/attention/rewrite.h"
#include "kernels/cpu/multiply.h"
#include "kernels/cpu/shuffle.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/with_type.h"
#include "kernels/rows/low_bit.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int64_t kMaxDim = kAttentionMaxHeadDim, kMaxRows = kAttentionMaxRows;
constexpr int64_t kTile = kPrefixTile;
constexpr int64_t kBlockRows = 24;  // rows whose scores are held at once

constexpr float kNone = -__builtin_inff();

// Rows of K and V at any addresses.
struct Rows {
  const char* k[kTile];
  const char* v[kTile];
  const f16* k_parameters = nullptr;  // of the first row, if K is low-bit; the others' follow
  const f16* v_parameters = nullptr;
  int64_t count;
  bool apart;     // v's rows are not contiguous
  int64_t ahead;  // rows from here to the next ones, to prefetch; 0: none
};

// ---- A block of rows of q -------------------------------------------------------------------------------------------

enum class Weights { kFloats, kRounded };

struct Work {
  int64_t rows, dim, stride;  // stride: of o, a multiple of kLanes
  int64_t steps;              // of q: elements, or pairs
  int64_t width;              // keys in a tile: kTile or kTailGroup
  DType k_type, v_type;
  Multiply scores;
  Weights weights;
  float scale;

  float m[kMaxRows], l[kMaxRows];
  int64_t limit[kMaxRows];  // positions that the row sees: [0, limit)
  alignas(64) float q[kMaxRows * kMaxDim];
  alignas(64) float o[kMaxRows * kMaxDim];
  alignas(64) float k[kTile * kMaxDim];  // the tile's keys, transposed
  alignas(64) float v[kTile * kMaxDim];  // the tile's values if they must be rewritten
  alignas(64) float s[kBlockRows * kTile];
  alignas(64) float k_scale[kTile];  // factors of the tile's scores: w.scale, and the key's own if K is int8
  alignas(64) float v_scale[kTile];  // of its weights, if V is int8
};

template <typename T>
void read_q(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t some = smaller(kLanes, count - i);
    store_some(to + i, load_some(from + i, some), some);
  }
}

void read_q(const AttentionShape& shape, const void* q, const AttentionBlock& block, Work& w) {
  const int64_t bytes = value_bytes(shape.type, 1);
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t query = block.first_query + row / block.heads, head = block.first_head + row % block.heads;
    const char* from = static_cast<const char*>(q) + (query * shape.q_stride + head * w.dim) * bytes;
    float* to = w.q + row * w.steps;
    if (w.scores == Multiply::kPairs || shape.type == DType::kF32) {
      memcpy(to, from, size_t(w.dim * bytes));
    } else {
      with_type(shape.type, [&](auto t) { read_q(reinterpret_cast<const decltype(t)*>(from), w.dim, to); });
    }
    if (w.k_type == DType::kInt4) hadamard(to, w.dim);
  }
}

void start(const AttentionShape& shape, const void* q, const AttentionBlock& block, Work& w) {
  w.rows = block.queries * block.heads;
  w.dim = shape.head_dim;
  w.stride = padded(w.dim);
  w.k_type = shape.k_type;
  w.v_type = shape.v_type;
  w.scale = shape.scale;
  w.steps = w.scores == Multiply::kPairs ? w.dim / 2 : w.dim;
  read_q(shape, q, block, w);
  for (int64_t row = 0; row < w.rows; ++row) {
    w.m[row] = kNone;
    w.l[row] = 0.0f;
  }
  memset(w.o, 0, size_t(w.rows * w.stride) * sizeof(float));
}

// Whether this shape supports products of pairs.
bool pairs(const AttentionShape& shape) {
#if defined(__AVX512BF16__)
  return shape.type == DType::kBF16 && (shape.k_type == DType::kBF16 || shape.k_type == DType::kInt8);
#else
  (void)shape;
  return false;
#endif
}

// The tile's values as the micro-kernel reads them: address and row stride (elements).
struct Values {
  const void* rows;
  int64_t stride;
  DType type;
};

// Widens a tile of int4 rows.
void widen_tile(const char* const* rows, const f16* parameters, int64_t count, int64_t ahead, const Work& w,
                float* out) {
  const int64_t bytes = value_bytes(DType::kInt4, w.dim), parameters_each = parameter_count(DType::kInt4, w.dim);
  if (ahead > 0) prefetch_rows(rows, count, bytes, ahead * bytes);
  for (int64_t row = 0; row < count; ++row) {
    widen_int4(rows[row], parameters + row * parameters_each, w.dim, out + row * w.stride);
  }
}

// A tile's int8 scales, times `factor`; 0 beyond `count`.
void read_scales(const f16* parameters, int64_t count, float factor, float* out) {
  for (int64_t i = 0; i < kTile; i += kLanes) {
    vf scale = zero();
    if (i < count) scale = load_some(parameters + i, smaller(kLanes, count - i));
    store(out + i, scale * factor);
  }
}

void prepare_keys(const Rows& rows, Work& w) {
  const int64_t ahead = rows.ahead * value_bytes(w.k_type, w.dim);
  if (w.k_type == DType::kInt8) {
    read_scales(rows.k_parameters, rows.count, w.scale, w.k_scale);
  } else {
    for (int64_t i = 0; i < kTile; ++i) w.k_scale[i] = w.scale;
  }
  if (w.k_type == DType::kInt8 && w.scores == Multiply::kPairs) {
    transpose_rows<int8_pair>(rows.k, rows.count, w.steps, w.width, ahead, w.k);
  } else if (w.k_type == DType::kInt8) {
    transpose_rows<int8_value>(rows.k, rows.count, w.steps, w.width, ahead, w.k);
  } else if (w.k_type == DType::kInt4) {
    widen_tile(rows.k, rows.k_parameters, rows.count, rows.ahead, w, w.v);  // where the values come later
    const char* widened[kTile];
    for (int64_t i = 0; i < rows.count; ++i) widened[i] = reinterpret_cast<const char*>(w.v + i * w.stride);
    transpose_rows<float>(widened, rows.count, w.steps, w.width, 0, w.k);
  } else if (w.scores == Multiply::kPairs) {
    transpose_rows<float>(rows.k, rows.count, w.steps, w.width, ahead, w.k);
  } else {
    with_type(w.k_type, [&](auto t) { transpose_rows<decltype(t)>(rows.k, rows.count, w.steps, w.width, ahead, w.k); });
  }
}

// `many`: enough rows read them that widening them once pays.
Values prepare_values(const Rows& rows, bool many, Work& w) {
  if (w.v_type == DType::kInt8) read_scales(rows.v_parameters, rows.count, 1.0f, w.v_scale);
  if (w.weights == Weights::kRounded) {
    pair_rows(rows.v, rows.count, w.dim, w.v);
  } else if (w.v_type == DType::kInt4) {
    widen_tile(rows.v, rows.v_parameters, rows.count, rows.ahead, w, w.v);
  } else if (!rows.apart && w.stride == w.dim && (!many || w.v_type == DType::kF32)) {
    return {rows.v[0], w.dim, w.v_type};
  } else if (w.v_type == DType::kInt8) {
    widen_rows<int8_value>(rows.v, rows.count, w.dim, w.v);
  } else {
    with_type(w.v_type, [&](auto t) { widen_rows<decltype(t)>(rows.v, rows.count, w.dim, w.v); });
  }
  return {w.v, w.stride, DType::kF32};
}

// ---- One tile for some rows -----------------------------------------------------------------------------------------

// Up to kBlockRows rows, and the number of the tile's keys that each sees (at least one).
struct Some {
  int64_t count = 0;
  int64_t row[kBlockRows];
  int64_t seen[kBlockRows];
};

void score_rows(const Some& some, Work& w) {
  Operands x;
  x.b = w.k;
  x.b_stride = w.width;
  x.steps = w.steps;
  for (int64_t first = 0; first < some.count; first += kMaxTileRows) {
    const int64_t rows = smaller(kMaxTileRows, some.count - first);
    for (int64_t r = 0; r < rows; ++r) {
      x.a[r] = w.q + some.row[first + r] * w.steps;
      x.c[r] = w.s + (first + r) * kTile;
    }
    if (w.scores == Multiply::kPairs) {
      multiply_any<Multiply::kPairs, false, float>(x, rows, w.width);
    } else {
      multiply_any<Multiply::kFloats, false, float>(x, rows, w.width);
    }
  }
}

HEADRACE_SIMD void store_rounded(bf16* p, vf v) {
#if defined(__AVX512BF16__)
  store_halves(p, (vh)_mm512_cvtneps_pbh((__m512)v));
#else
  store(p, v);
#endif
}

// Converts scores to weights: e^(score - m) with the new maximum; unseen keys get weight 0. keep: the factors for the
// old o and l.
void weigh_rows(const Some& some, float* keep, Work& w) {
  vi lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  alignas(64) float old[kBlockRows + kLanes];
  for (int64_t i = 0; i < some.count; ++i) {
    float* s = w.s + i * kTile;
    vf top = splat(kNone);
    for (int64_t j = 0; j < w.width; j += kLanes) {
      vf score = load(s + j) * load(w.k_scale + j);
      score = select(lane < int32_t(some.seen[i] - j), score, splat(kNone));
      store(s + j, score);
      top = max(top, score);
    }
    float& m = w.m[some.row[i]];
    const float tile_m = largest_lane(top);
    old[i] = m;
    m = m < tile_m ? tile_m : m;
    old[i] -= m;
  }
  for (int64_t i = 0; i < some.count; i += kLanes) store(keep + i, exp(load(old + i)));
  for (int64_t i = 0; i < some.count; ++i) {
    float* s = w.s + i * kTile;
    const vf m = repeat(&w.m[some.row[i]]);
    vf total = zero();
    for (int64_t j = 0; j < w.width; j += kLanes) {
      const vf weight = exp(load(s + j) - m);
      total = total + weight;
      if (w.weights == Weights::kRounded) {
        store_rounded(reinterpret_cast<bf16*>(s) + j, weight);
      } else if (w.v_type == DType::kInt8) {
        store(s + j, weight * load(w.v_scale + j));
      } else {
        store(s + j, weight);
      }
    }
    w.l[some.row[i]] = w.l[some.row[i]] * keep[i] + sum_of_lanes(total);
  }
}

void add_values(const Some& some, const float* keep, const Values& values, int64_t count, int64_t ahead, Work& w) {
  Operands x;
  x.b = values.rows;
  x.b_stride = values.stride;
  x.steps = w.weights == Weights::kRounded ? (count + 1) / 2 : count;
  x.ahead = values.rows == w.v ? 0 : ahead * values.stride;
  for (int64_t first = 0; first < some.count; first += kMaxTileRows) {
    const int64_t rows = smaller(kMaxTileRows, some.count - first);
    for (int64_t r = 0; r < rows; ++r) {
      x.a[r] = w.s + (first + r) * kTile;
      x.c[r] = w.o + some.row[first + r] * w.stride;
      x.keep[r] = keep[first + r];
    }
    if (w.weights == Weights::kRounded) {
      multiply_any<Multiply::kPairs, true, float>(x, rows, w.stride);
    } else if (values.type == DType::kInt8) {
      multiply_any<Multiply::kFloats, true, int8_value>(x, rows, w.stride);
    } else {
      with_type(values.type, [&](auto t) { multiply_any<Multiply::kFloats, true, decltype(t)>(x, rows, w.stride); });
    }
  }
}

// Processes the tile at `position` for those of rows [first, end) that see any of it.
void show_tile(const Rows& rows, int64_t position, int64_t first, int64_t end, Work& w) {
  prepare_keys(rows, w);
  const Values values = prepare_values(rows, w.rows > 2 * kMaxTileRows, w);
  Some some;
  for (int64_t row = first; row <= end; ++row) {
    if (row < end && w.limit[row] > position) {
      some.row[some.count] = row;
      some.seen[some.count++] = smaller(w.limit[row] - position, rows.count);
    }
    if (some.count == kBlockRows || (row == end && some.count > 0)) {
      alignas(64) float keep[kBlockRows + kLanes];
      score_rows(some, w);
      weigh_rows(some, keep, w);
      add_values(some, keep, values, rows.count, rows.ahead, w);
      some.count = 0;
    }
  }
}

// Processes the tile at `position` for every row that sees any of it. An unseen value gets weight 0, which cancels
// finite values only: a tile with others is processed for each row separately, up to the row's limit. (A prefix ends at
// a tile's end, so nothing is screened there, and low-bit rows are in no other place.)
void see_tile(const Rows& rows, int64_t position, Work& w) {
  int64_t common = rows.count;  // rows of the tile that all of them see
  for (int64_t row = 0; row < w.rows; ++row) {
    if (w.limit[row] > position) common = smaller(common, w.limit[row] - position);
  }
  if (all_finite(rows.v + common, rows.count - common, w.dim, w.v_type)) {
    return show_tile(rows, position, 0, w.rows, w);
  }
  for (int64_t row = 0; row < w.rows; ++row) {
    Rows seen = rows;
    seen.count = smaller(w.limit[row] - position, rows.count);
    if (seen.count > 0) show_tile(seen, position, row, row + 1, w);
  }
}

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

// Rows [0, end) of a segment, tile by tile.
void see_segment(const AttentionShape& shape, const KvSegment& segment, int64_t kv_head, int64_t end, Work& w) {
  const HeadRows k(segment.k, w.k_type, shape, segment, kv_head);
  const HeadRows v(segment.v, w.v_type, shape, segment, kv_head);
  for (int64_t begin = 0; begin < end; begin += kTile) {
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

template <typename T>
void write_out(const float* o, float l, int64_t dim, T* out) {
  for (int64_t i = 0; i < dim; i += kLanes) {
    const int64_t some = smaller(kLanes, dim - i);
    // + 0: a zero's sign must not depend on rows with weight 0.
    store_some(out + i, load_some(o + i, some) / splat(l) + 0.0f, some);
  }
}

void write_out(DType type, const float* o, float l, int64_t dim, void* out, int64_t index) {
  with_type(type, [&](auto t) { write_out(o, l, dim, static_cast<decltype(t)*>(out) + index); });
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
    w.limit[row] = params.first_position + block.first_query + row / block.heads + 1;
  }
  const int64_t end = w.limit[w.rows - 1];
  for (int64_t n = 0; n < params.segment_count; ++n) {
    const KvSegment& segment = params.segments[n];
    see_segment(shape, segment, block.kv_head, smaller(end - segment.position, segment.rows), w);
  }
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
  int64_t end = 0;
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t t = params.positions[block.first_query + row / block.heads];
    w.limit[row] = t < kTailWindow ? 0 : (t - kTailWindow) / kPrefixTile * kPrefixTile;  // tail_begin(t)
    end = larger(end, w.limit[row]);
  }
  see_segment(shape, segment, block.kv_head, smaller(end - segment.position, segment.rows), w);
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
  for (int64_t row = 0; row < w.rows; ++row) w.limit[row] = t + 1;
  const int64_t first = t < kTailWindow ? 0 : (t - kTailWindow) / kPrefixTile * kPrefixTile;  // tail_begin(t)
  for (int64_t begin = first; begin <= t; begin += kTailGroup) {
    Rows rows;
    rows.apart = true;
    rows.ahead = 0;
    rows.count = smaller(kTailGroup, t + 1 - begin);
    find_rows(params, block, begin, &rows);
    see_tile(rows, begin, w);
  }
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
