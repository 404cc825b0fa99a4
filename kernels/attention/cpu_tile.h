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
//
// For cpu_isa.cc here and in kernels/int8_attention; pure, and everything is in the set's own namespace.
#pragma once

#include "kernels/attention/cpu_isa.h"
#include "kernels/cpu/multiply.h"
#include "kernels/cpu/rewrite.h"
#include "kernels/cpu/shuffle.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/with_type.h"
#include "kernels/rows/low_bit.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int64_t kMaxDim = kMaxAttentionHeadDim, kMaxRows = kAttentionMaxRows;
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
  int64_t unseen = 0;  // rows before these have weight 0, and their values may be anything
  bool apart;          // v's rows are not contiguous
  int64_t ahead;       // rows from here to the next ones, to prefetch; 0: none
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
  int64_t first[kMaxRows], limit[kMaxRows];  // positions that the row sees: [first, limit)
  alignas(64) float q[kAttentionMaxElements];
  alignas(64) float o[kAttentionMaxElements];
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
    w.first[row] = 0;
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

HEADRACE_SIMD bool is_low_bit(DType type) { return type == DType::kInt8 || type == DType::kInt4; }

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

// Values of rows that have weight 0 for all become 0: a weight does not cancel one that is not finite.
void drop_unseen(Rows& rows, const Work& w) {
  alignas(64) static const char kZeros[kMaxDim * sizeof(float)] = {};
  if (is_low_bit(w.v_type) || rows.unseen == 0) return;
  rows.apart = true;
  for (int64_t i = 0; i < rows.unseen; ++i) rows.v[i] = kZeros;
}

// `many`: enough rows read them that widening them once pays.
Values prepare_values(const Rows& rows, bool many, Work& w) {
  if (w.v_type == DType::kInt8) {
    read_scales(rows.v_parameters, rows.count, 1.0f, w.v_scale);
    for (int64_t i = 0; i < rows.unseen; ++i) w.v_scale[i] = 0.0f;
  }
  if (w.weights == Weights::kRounded) {
    pair_rows(rows.v, rows.count, w.dim, w.v);
  } else if (w.v_type == DType::kInt4) {
    widen_tile(rows.v, rows.v_parameters, rows.count, rows.ahead, w, w.v);
    memset(w.v, 0, size_t(rows.unseen * w.stride) * sizeof(float));
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

// Up to kBlockRows rows, and which of the tile's keys each sees: [first, limit), at least one.
struct Some {
  int64_t count = 0;
  int64_t row[kBlockRows];
  int64_t first[kBlockRows], limit[kBlockRows];
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
      score = select((lane < int32_t(some.limit[i] - j)) & (lane >= int32_t(some.first[i] - j)), score, splat(kNone));
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
    if (row < end && w.limit[row] > position && w.first[row] < position + rows.count) {
      some.row[some.count] = row;
      some.first[some.count] = larger(w.first[row] - position, 0);
      some.limit[some.count++] = smaller(w.limit[row] - position, rows.count);
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

// Whether all values of the tile's rows [begin, end) are finite.
bool finite_values(const Rows& rows, int64_t begin, int64_t end, const Work& w) {
  if (!is_low_bit(w.v_type)) return all_finite(rows.v + begin, end - begin, w.dim, w.v_type);
  const int64_t each = parameter_count(w.v_type, w.dim);
  const char* parameters = reinterpret_cast<const char*>(rows.v_parameters + begin * each);
  return begin == end || all_finite(&parameters, 1, (end - begin) * each, DType::kF16);
}

// Processes the tile at `position` for every row that sees any of it. An unseen value gets weight 0, which cancels
// finite values only: a tile with others is processed for each row separately, without the values that it does not see.
// (A prefix ends at a tile's end, so nothing behind a limit is screened there, and low-bit rows are in no other place.)
void see_tile(const Rows& rows, int64_t position, Work& w) {
  int64_t first = 0, common = rows.count;  // rows of the tile that all of them see
  for (int64_t row = 0; row < w.rows; ++row) {
    if (w.limit[row] <= position || w.first[row] >= position + rows.count) continue;
    common = smaller(common, w.limit[row] - position);
    first = larger(first, w.first[row] - position);
  }
  if (finite_values(rows, 0, first, w) && finite_values(rows, common, rows.count, w)) {
    return show_tile(rows, position, 0, w.rows, w);
  }
  for (int64_t row = 0; row < w.rows; ++row) {
    Rows seen = rows;
    seen.count = smaller(w.limit[row] - position, rows.count);
    seen.unseen = larger(w.first[row] - position, 0);
    if (seen.count <= seen.unseen) continue;
    drop_unseen(seen, w);
    show_tile(seen, position, row, row + 1, w);
  }
}

// ---- Results --------------------------------------------------------------------------------------------------------

// Folds the sinks' states into the rows'.
void see_sinks(const float* sinks, const AttentionBlock& block, Work& w) {
  if (sinks == nullptr) return;
  for (int64_t row = 0; row < w.rows; ++row) {
    const float sink = sinks[block.first_head + row % block.heads];
    const float top = w.m[row] < sink ? sink : w.m[row];
    const vf keep = exp(splat(w.m[row] - top)), add = exp(splat(sink - top));
    float* const o = w.o + row * w.stride;
    for (int64_t i = 0; i < w.stride; i += kLanes) store(o + i, load(o + i) * keep);
    w.l[row] = w.l[row] * keep[0] + add[0];
    w.m[row] = top;
  }
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

}  // namespace

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
