// The op for one instruction set: the conversion of a tile of K and V, and the attention of a block of queries, first
// over the tiles in 8 bits, then over their own tile, as kernels/attention does it.
#include "kernels/int8_attention/cpu_isa.h"

#include "kernels/attention/cpu_tile.h"
#include "kernels/int8/cpu_dot.h"
#include "kernels/int8/cpu_scale.h"
#include "kernels/int8_attention/layout.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int64_t kMaxInt8Dim = kMaxInt8AttentionHeadDim;

// ---- Rows -----------------------------------------------------------------------------------------------------------

// The row at `position` of a KV head, in K's or V's plane of its segment.
const char* row_of(const KvSegment* segments, int64_t count, const void* KvSegment::*plane, int64_t row_bytes,
                   int64_t kv_head, int64_t position) {
  int64_t i = 0;
  while (i + 1 < count && segments[i + 1].position <= position) ++i;
  const KvSegment& segment = segments[i];
  return static_cast<const char*>(segment.*plane) +
         (kv_head * segment.stride_rows + position - segment.position) * row_bytes;
}

void read_row(DType type, const char* from, int64_t dim, float* to) {
  with_type(type, [&](auto t) { read_q(reinterpret_cast<const decltype(t)*>(from), dim, to); });
}

// ---- Rotation and quantisation: kernels/int8/op.h -------------------------------------------------------------------

// Each run of `block` values in place; the butterflies have distances 1, 2, 4, … in this order.
void rotate(float* values, int64_t dim, int64_t block) {
  for (int64_t apart = 1; apart < block; apart *= 2) {
    for (int64_t i = 0; i < dim; i += 2 * apart) {
      for (int64_t j = i; j < i + apart; ++j) {
        const float a = values[j], b = values[j + apart];
        values[j] = a + b;
        values[j + apart] = a - b;
      }
    }
  }
}

// Returns its scale.
float quantise_row(const float* values, int64_t dim, int8_t* out) {
  int32_t top = 0;
  for (int64_t i = 0; i < dim; ++i) top = top < magnitude_bits(values[i]) ? magnitude_bits(values[i]) : top;
  const Int8Scale scale = int8_scale(top);
  for (int64_t i = 0; i < dim; ++i) out[i] = int8_of(values[i], scale);
  return scale.scale;
}

float without_last_bits(float scale) {
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  bits &= ~3u;
  memcpy(&scale, &bits, sizeof bits);
  return scale;
}

// ---- Conversion -----------------------------------------------------------------------------------------------------

void centre(const Int8CentreParams& params, int64_t kv_head) {
  const int64_t dim = params.head_dim, bytes = value_bytes(params.k_type, dim);
  float* sum = params.centre + kv_head * dim;
  alignas(64) float row[kMaxInt8Dim];
  for (int64_t i = 0; i < dim; ++i) sum[i] = 0.0f;
  for (int64_t position = 0; position < kInt8CentreRows; ++position) {
    read_row(params.k_type, row_of(params.segments, params.segment_count, &KvSegment::k, bytes, kv_head, position), dim,
             row);
    for (int64_t i = 0; i < dim; ++i) sum[i] += row[i];
  }
  for (int64_t i = 0; i < dim; ++i) sum[i] *= 1.0f / float(kInt8CentreRows);
}

char* block_of(const Int8KvRows& rows, int64_t kv_heads, int64_t tile, int64_t kv_head, int64_t padded_dim) {
  return reinterpret_cast<char*>(rows.data) + (tile * kv_heads + kv_head) * cpu::kv8_block_bytes(padded_dim);
}

void convert_keys(const Int8KvParams& params, const char* rows, int64_t kv_head, int64_t padded_dim, char* block) {
  const int64_t dim = params.head_dim, bytes = value_bytes(params.k_type, dim);
  const float* middle = params.centre + kv_head * dim;
  alignas(64) float row[kMaxInt8Dim];
  alignas(64) int8_t quantised[kMaxInt8Dim];
  int8_t* out = reinterpret_cast<int8_t*>(block);
  int32_t* sums = reinterpret_cast<int32_t*>(block + cpu::kv8_sums(padded_dim));
  float* scales = reinterpret_cast<float*>(block + cpu::kv8_k_scales(padded_dim));
  memset(quantised, 0, sizeof quantised);
  for (int64_t r = 0; r < kTile; ++r) {
    read_row(params.k_type, rows + r * bytes, dim, row);
    for (int64_t i = 0; i < dim; ++i) row[i] -= middle[i];
    rotate(row, dim, dim & -dim);
    scales[r] = without_last_bits(quantise_row(row, dim, quantised));
    int32_t sum = 0;
    for (int64_t i = 0; i < dim; ++i) sum += quantised[i];
    sums[r] = sum;
    for (int64_t i = 0; i < padded_dim; i += 4) memcpy(out + (i * kTile + r * 4), quantised + i, 4);
  }
}

void convert_values(const Int8KvParams& params, const char* rows, int64_t padded_dim, char* block) {
  const int64_t dim = params.head_dim, bytes = value_bytes(params.v_type, dim);
  alignas(64) float values[kTile * kMaxInt8Dim];
  alignas(64) int32_t top[kMaxInt8Dim] = {};
  int8_t* out = reinterpret_cast<int8_t*>(block + cpu::kv8_v(padded_dim));
  float* scales = reinterpret_cast<float*>(block + cpu::kv8_v_scales(padded_dim));
  for (int64_t r = 0; r < kTile; ++r) {
    float* row = values + r * padded_dim;
    for (int64_t i = dim; i < padded_dim; ++i) row[i] = 0.0f;
    read_row(params.v_type, rows + r * bytes, dim, row);
    for (int64_t i = 0; i < dim; ++i) top[i] = top[i] < magnitude_bits(row[i]) ? magnitude_bits(row[i]) : top[i];
  }
  Int8Scale scale[kMaxInt8Dim];
  for (int64_t i = 0; i < padded_dim; ++i) {
    scale[i] = int8_scale(top[i]);
    scales[i] = scale[i].scale;
  }
  for (int64_t r = 0; r < kTile; ++r) {
    for (int64_t i = 0; i < padded_dim; ++i) {
      out[(r / 4 * padded_dim + i) * 4 + r % 4] = int8_of(values[r * padded_dim + i], scale[i]);
    }
  }
}

void kv(const Int8KvParams& params, int64_t first, int64_t kv_head) {
  const int64_t padded_dim = kv8_dim(params.head_dim, cpu::kKv8Multiple);
  char* block = block_of(params.out, params.kv_heads, first / kTile, kv_head, padded_dim);
  const auto rows = [&](const void* KvSegment::*plane, DType type) {
    return row_of(params.segments, params.segment_count, plane, value_bytes(type, params.head_dim), kv_head, first);
  };
  convert_keys(params, rows(&KvSegment::k, params.k_type), kv_head, padded_dim, block);
  convert_values(params, rows(&KvSegment::v, params.v_type), padded_dim, block);
}

// ---- Attention ------------------------------------------------------------------------------------------------------

#if defined(__AVX512VNNI__)
constexpr int kTileRows = 6;
#elif defined(__AVX512F__)
constexpr int kTileRows = 4;
#else
constexpr int kTileRows = 2;
#endif
constexpr int64_t kXBytes = Int8Dot::kXBytes;

// kRows rows of x times kVectors vectors of lanes; w: [steps][lanes][4], `stride` bytes a step.
template <int kRows, int kVectors, bool kSigned>
HEADRACE_SIMD void dots(const int8_t* const* x, int64_t x_padded, const int8_t* w, int64_t stride, const int8_t* sums,
                        int64_t steps, int32_t* const* out) {
  vi acc[kRows][kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const vi first = kSigned ? Int8Dot::begin(sums + v * kLanes * 4) : vi{};
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r][v] = first;
  }
  for (int64_t i = 0; i < steps; ++i) {
    Int8Dot::Weights b[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) b[v] = Int8Dot::read(w + i * stride + v * kLanes * 4);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Int8Dot::X a = Int8Dot::repeat(x[r], x_padded, i);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Int8Dot::add(acc[r][v], a, b[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store_ints(out[r] + v * kLanes, acc[r][v]);
  }
}

struct Dots {
  const int8_t* x[kTileRows];
  int32_t* out[kTileRows];
  int64_t x_padded;  // bytes from a row's even numbers to its odd ones, where they are apart
  const int8_t* w;
  const int8_t* sums;
  int64_t lanes, steps;
};
template <int kRows, bool kSigned>
void all_lanes(const Dots& d) {
  int64_t lane = 0;
  int32_t* out[kRows];
  const auto at = [&] {
    for (int r = 0; r < kRows; ++r) out[r] = d.out[r] + lane;
    return d.w + lane * 4;
  };
  for (; lane + 4 * kLanes <= d.lanes; lane += 4 * kLanes) {
    const int8_t* w = at();
    dots<kRows, 4, kSigned>(d.x, d.x_padded, w, d.lanes * 4, kSigned ? d.sums + lane * 4 : nullptr, d.steps, out);
  }
  for (; lane < d.lanes; lane += kLanes) {
    const int8_t* w = at();
    dots<kRows, 1, kSigned>(d.x, d.x_padded, w, d.lanes * 4, kSigned ? d.sums + lane * 4 : nullptr, d.steps, out);
  }
}
template <bool kSigned>
void some_rows(const Dots& d, int64_t rows) {
  if (rows == kTileRows) return all_lanes<kTileRows, kSigned>(d);
  Dots one = d;
  for (int64_t r = 0; r < rows; ++r) {
    one.x[0] = d.x[r];
    one.out[0] = d.out[r];
    all_lanes<1, kSigned>(one);
  }
}

// A row of q as Int8Dot reads it, `padded` values: bytes with 128 added, or the even and the odd ones as 16 bits.
void prepare_query(const int8_t* q, int64_t padded_dim, int8_t* to) {
  for (int64_t i = 0; i < padded_dim; ++i) {
    if constexpr (kXBytes == 1) {
      to[i] = int8_t(uint8_t(q[i]) ^ 0x80);
    } else {
      const int16_t wide = q[i];
      memcpy(to + i % 2 * padded_dim + i / 2 * 2, &wide, sizeof wide);
    }
  }
}

// A row's queries in 8 bits, scores and weights.
struct Int8Work {
  int64_t padded_dim;
  float scale[kMaxRows];   // of a row's scores: q's own, that of softmax, and 1 / block
  float centre[kMaxRows];  // what its scores lack: q.c, times that of softmax
  alignas(64) int8_t q[kMaxRows * kMaxInt8Dim * kXBytes];
  alignas(64) int32_t sums[kBlockRows * kMaxInt8Dim];
  alignas(64) int8_t weights[kBlockRows * kTile * kXBytes];
};

void start_queries(const Int8AttentionParams& params, const AttentionBlock& block, const Work& w, Int8Work& work) {
  const AttentionShape& shape = params.shape;
  const int64_t dim = shape.head_dim, bytes = value_bytes(shape.type, 1), rotation = dim & -dim;
  work.padded_dim = kv8_dim(dim, cpu::kKv8Multiple);
  alignas(64) float row[kMaxInt8Dim];
  alignas(64) int8_t quantised[kMaxInt8Dim];
  const float* middle = params.centre + block.kv_head * dim;
  memset(quantised, 0, sizeof quantised);
  for (int64_t r = 0; r < w.rows; ++r) {
    const int64_t query = block.first_query + r / block.heads, head = block.first_head + r % block.heads;
    read_row(shape.type, static_cast<const char*>(params.q) + (query * shape.q_stride + head * dim) * bytes, dim, row);
    float product = 0.0f;
    for (int64_t i = 0; i < dim; ++i) product += row[i] * middle[i];
    work.centre[r] = product * shape.scale;
    rotate(row, dim, rotation);
    work.scale[r] = quantise_row(row, dim, quantised) * (shape.scale / float(rotation));
    prepare_query(quantised, work.padded_dim, work.q + r * work.padded_dim * kXBytes);
  }
}

// Converts a row's sums to weights; returns their sum. The tile's maximum goes to *top; it is NaN if `zero_of_keys` or
// the scale is.
int32_t weigh(const int32_t* sums, float scale, const float* k_scales, float zero_of_keys, float* top,
              int8_t* weights) {
  vf s[kTile / kLanes];
  vf most = splat(kNone);
#pragma GCC unroll 16
  for (int64_t j = 0; j < kTile / kLanes; ++j) {
    const vf sum_of_row = __builtin_convertvector(load_ints(sums + j * kLanes), vf);
    s[j] = sum_of_row * (load(k_scales + j * kLanes) * scale);
    most = max(most, s[j]);
  }
  *top = largest_lane(most) + zero_of_keys * scale;
  vi total{};
#pragma GCC unroll 16
  for (int64_t j = 0; j < kTile / kLanes; ++j) {
    const vf weight = exp(s[j] - *top);
    const vi whole = reinterpret_cast<vi>(weight * 255.0f + kRoundToInteger) & 0xff;
    total = total + whole;
    if constexpr (kXBytes == 1) {
#if defined(__AVX512F__)
      const __m128i low = _mm512_cvtepi32_epi8((__m512i)whole);
      memcpy(weights + j * kLanes, &low, sizeof low);
#endif
    } else {
      int16_t words[kLanes];
      for (int i = 0; i < kLanes; ++i) words[i] = int16_t(whole[i]);
      for (int i = 0; i < kLanes; ++i) {
        const int64_t key = j * kLanes + i;
        memcpy(weights + key % 2 * kTile + key / 2 * 2, &words[i], sizeof words[i]);
      }
    }
  }
  int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += total[i];
  return sum;
}

// o = o * keep + sums * v_scales * add
void add_sums(const int32_t* sums, const float* v_scales, float keep, float add, int64_t dim, float* o) {
  for (int64_t i = 0; i < dim; i += kLanes) {
    const vf value = __builtin_convertvector(load_ints(sums + i), vf) * (load(v_scales + i) * add);
    store(o + i, fma(load(o + i), splat(keep), value));
  }
}

// Folds one tile into rows [first, first + count) of the block.
void see_int8_tile(const char* block, int64_t first, int64_t count, Int8Work& work, Work& w) {
  const int64_t dim = work.padded_dim;
  const auto at = [&](int64_t offset) { return reinterpret_cast<const int8_t*>(block + offset); };
  const float* k_scales = reinterpret_cast<const float*>(block + cpu::kv8_k_scales(dim));
  const float* v_scales = reinterpret_cast<const float*>(block + cpu::kv8_v_scales(dim));
  Dots d;
  const auto for_rows = [&](const int8_t* x, int64_t x_bytes, auto run) {
    for (int64_t r = 0; r < count; r += kTileRows) {
      const int64_t rows = smaller(kTileRows, count - r);
      for (int64_t i = 0; i < rows; ++i) {
        d.x[i] = x + (r + i) * x_bytes;
        d.out[i] = work.sums + (r + i) * kMaxInt8Dim;
      }
      run(rows);
    }
  };
  d.x_padded = dim;
  d.w = at(0);
  d.sums = at(cpu::kv8_sums(dim));
  d.lanes = kTile;
  d.steps = dim / 4;
  for_rows(work.q + first * dim * kXBytes, dim * kXBytes, [&](int64_t rows) { some_rows<true>(d, rows); });
  alignas(64) float keep[kBlockRows + kLanes], add[kBlockRows + kLanes];
  int32_t sum[kBlockRows];
  float zero_of_keys = 0.0f;  // NaN if a key is not finite
  for (int64_t key = 0; key < kTile; ++key) zero_of_keys += 0.0f * k_scales[key];
  for (int64_t r = 0; r < count; ++r) {
    float top;
    sum[r] = weigh(work.sums + r * kMaxInt8Dim, work.scale[first + r], k_scales, zero_of_keys, &top,
                   work.weights + r * kTile * kXBytes);
    float& m = w.m[first + r];
    const float before = m;
    m = m < top ? top : m;
    keep[r] = before - m;
    add[r] = top - m;
  }
  for (int64_t r = 0; r < count; r += kLanes) {
    store(keep + r, exp(load(keep + r)));
    store(add + r, exp(load(add + r)));
  }
  d.x_padded = kTile;
  d.w = at(cpu::kv8_v(dim));
  d.lanes = dim;
  d.steps = kTile / 4;
  for_rows(work.weights, kTile * kXBytes, [&](int64_t rows) { some_rows<false>(d, rows); });
  for (int64_t r = 0; r < count; ++r) {
    const float of_sums = add[r] / 255.0f;
    w.l[first + r] = w.l[first + r] * keep[r] + float(sum[r]) * of_sums;
    add_sums(work.sums + r * kMaxInt8Dim, v_scales, keep[r], of_sums, dim, w.o + (first + r) * w.stride);
  }
}

void see_own_tile(const Int8AttentionParams& params, int64_t kv_head, int64_t begin, int64_t end, Work& w) {
  const AttentionShape& shape = params.shape;
  const int64_t k_bytes = value_bytes(shape.k_type, shape.head_dim),
                v_bytes = value_bytes(shape.v_type, shape.head_dim);
  const char* k = row_of(params.segments, params.segment_count, &KvSegment::k, k_bytes, kv_head, begin);
  const char* v = row_of(params.segments, params.segment_count, &KvSegment::v, v_bytes, kv_head, begin);
  Rows rows;
  rows.apart = false;
  rows.ahead = 0;
  rows.count = end - begin;
  for (int64_t i = 0; i < rows.count; ++i) {
    rows.k[i] = k + i * k_bytes;
    rows.v[i] = v + i * v_bytes;
  }
  see_tile(rows, begin, w);
}

void attention(const Int8AttentionParams& params, const AttentionBlock& block) {
  const AttentionShape& shape = params.shape;
  Work w;
  Int8Work work;
  w.scores = pairs(shape) ? Multiply::kPairs : Multiply::kFloats;
  w.weights = pairs(shape) && shape.v_type == DType::kBF16 ? Weights::kRounded : Weights::kFloats;
  w.width = kTile;
  start(shape, params.q, block, w);
  start_queries(params, block, w, work);
  for (int64_t row = 0; row < w.rows; ++row) {
    w.limit[row] = params.first_position + block.first_query + row / block.heads + 1;
  }
  const int64_t own = (params.first_position + block.first_query) / kTile;
  for (int64_t tile = 0; tile < own; ++tile) {
    const char* in = block_of(params.kv, shape.kv_heads, tile, block.kv_head, work.padded_dim);
    for (int64_t first = 0; first < w.rows; first += kBlockRows) {
      see_int8_tile(in, first, smaller(kBlockRows, w.rows - first), work, w);
    }
  }
  for (int64_t row = 0; row < w.rows; ++row) w.m[row] += work.centre[row];
  see_own_tile(params, block.kv_head, own * kTile, w.limit[w.rows - 1], w);
  see_sinks(params.sinks, block, w);
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t query = block.first_query + row / block.heads, head = block.first_head + row % block.heads;
    write_out(shape.type, w.o + row * w.stride, w.l[row], w.dim, params.out, (query * shape.heads + head) * w.dim);
  }
}

}  // namespace

const Int8AttentionKernels int8_attention_kernels = {centre, kv, attention};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
