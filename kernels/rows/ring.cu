// Rows of a KV cache: into its ring and its active segment, and the rows of chosen chunks before a draft's window. A
// thread processes chunks of eight elements. Compiled without contraction, like the CPU bodies: every FMA is explicit.
#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/rows/bodies.h"

namespace headrace::kernels::cuda {

namespace {

// ---- commit_rows ----------------------------------------------------------------------------------------------------

struct KvAligned {
  bool k, v;
};
struct KeysAligned {
  bool k, v, table, weight;
};

// Grid: (layers x count) x kv_heads.
__global__ void __launch_bounds__(32) commit_rows_kernel(CommitParams p, KvAligned aligned) {
  const int64_t layer = blockIdx.x / p.count, j = blockIdx.x % p.count, head = blockIdx.y;
  const int64_t source = p.source[j], position = p.first_position + j;
  device_check(source >= 0 && source < p.pass_rows);
  const int64_t from = ((layer * p.pass_rows + source) * p.kv_heads + head) * p.head_dim;
  const int64_t ring = ((layer * p.kv_heads + head) * p.ring_rows + position % p.ring_rows) * p.head_dim;
  const int64_t active = (head * p.active_rows + position - p.active_position) * p.head_dim;
  const auto copy = [&](const void* pass, void* ring_base, void* const* active_bases, DType type, bool wide) {
    const int64_t bytes = p.head_dim * bytes_of(type);
    copy_row(at(ring_base, ring, type), at(pass, from, type), bytes, wide);
    if (active_bases == nullptr) return;
    void* const active_base = active_bases[layer];
    wide = wide && reinterpret_cast<uintptr_t>(active_base) % 16 == 0;
    copy_row(at(active_base, active, type), at(pass, from, type), bytes, wide);
  };
  copy(p.pass_k, p.ring_k, p.active_k, p.k_type, aligned.k);
  copy(p.pass_v, p.ring_v, p.active_v, p.v_type, aligned.v);
}

// ---- fill_ring ------------------------------------------------------------------------------------------------------

// Grid: count x kv_heads.
__global__ void __launch_bounds__(32) fill_ring_kernel(FillRingParams p, KvAligned aligned) {
  const int64_t row = blockIdx.x, head = blockIdx.y;
  const int64_t from = (head * p.stride_rows + row) * p.head_dim;
  const int64_t to = (head * p.ring_rows + (p.first_position + row) % p.ring_rows) * p.head_dim;
  copy_row(at(p.ring_k, to, p.k_type), at(p.k, from, p.k_type), p.head_dim * bytes_of(p.k_type), aligned.k);
  if (p.v == nullptr) return;
  copy_row(at(p.ring_v, to, p.v_type), at(p.v, from, p.v_type), p.head_dim * bytes_of(p.v_type), aligned.v);
}

// ---- place_rows -----------------------------------------------------------------------------------------------------

// Grid: layers x rows, kv_heads. A lane turns chunks of the two halves of K.
__global__ void __launch_bounds__(32) place_rows_kernel(PlaceRowsParams p, KvAligned aligned) {
  const int64_t rows = p.sinks + p.keep * p.chunk_rows, layer = blockIdx.x / rows, i = blockIdx.x % rows;
  const int64_t in_chunks = i - p.sinks, half = p.head_dim / 2;
  const bool sink = in_chunks < 0;
  const int64_t row = sink ? i : p.chosen[in_chunks / p.chunk_rows] * p.chunk_rows + in_chunks % p.chunk_rows;
  const int64_t distance = p.end - rows + i - row;
  device_check(row >= 0 && distance >= 0);
  const int64_t plane = layer * p.kv_heads + blockIdx.y;
  const int64_t from = (plane * (sink ? p.sinks : p.ring_rows) + (sink ? row : row % p.ring_rows)) * p.head_dim;
  const int64_t to = (plane * p.out_rows + i) * p.head_dim;
  const float* const table = p.cos_sin + distance * p.head_dim;
  const void* const k = sink ? p.sink_k : p.ring_k;
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * kChunk; first < half; first += 32 * kChunk) {
    const int count = chunk_count(half, first);
    float a[kChunk], b[kChunk], c[kChunk], s[kChunk], x[kChunk], y[kChunk];
    load_chunk(table + first, count, false, c);
    load_chunk(table + half + first, count, false, s);
    load_chunk(p.k_type, k, from + first, count, aligned.k, a);
    load_chunk(p.k_type, k, from + half + first, count, aligned.k, b);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float factor = 1.0f / sqrtf(c[j] * c[j] + s[j] * s[j]);
      x[j] = a[j] * (c[j] * factor) - b[j] * (s[j] * factor);
      y[j] = b[j] * (c[j] * factor) + a[j] * (s[j] * factor);
    }
    store_chunk(p.k_type, p.k_out, to + first, count, aligned.k, x);
    store_chunk(p.k_type, p.k_out, to + half + first, count, aligned.k, y);
  }
  copy_row(at(p.v_out, to, p.v_type), at(sink ? p.sink_v : p.ring_v, from, p.v_type), p.head_dim * bytes_of(p.v_type),
           aligned.v);
}

// ---- make_keys ------------------------------------------------------------------------------------------------------

// Grid: rows, runs; a block has all heads of a row.
__global__ void __launch_bounds__(128) make_keys_kernel(const __grid_constant__ MakeKeysParams p, KeysAligned aligned) {
  const MakeKeysParams::Run& run = p.runs[blockIdx.y];
  const int64_t row = blockIdx.x, half = p.head_dim / 2;
  if (row >= run.rows) return;
  const int64_t position = p.positions != nullptr ? p.positions[row] : run.position + row;
  device_check(position >= 0 && position < p.table_rows);
  const float* const table = p.cos_sin + position * p.head_dim;
  const int64_t from = ((p.first != nullptr ? *p.first : 0) + row) * run.row_stride;
  const int each = static_cast<int>((half + kChunk - 1) / kChunk);  // chunks of half a head
  for (int item = static_cast<int>(threadIdx.x); item < each * static_cast<int>(p.kv_heads);
       item += static_cast<int>(blockDim.x)) {
    const int64_t first = static_cast<int64_t>(item % each) * kChunk, place = from + item / each * run.head_stride;
    const int count = chunk_count(half, first);
    float a[kChunk], b[kChunk], wa[kChunk], wb[kChunk], c[kChunk], s[kChunk], x[kChunk], y[kChunk];
    load_chunk(p.type, run.v, place + first, count, aligned.v, a);
    load_chunk(p.type, run.v, place + half + first, count, aligned.v, b);
    load_chunk(p.weight_type, p.weight, first, count, aligned.weight, wa);
    load_chunk(p.weight_type, p.weight, half + first, count, aligned.weight, wb);
    load_chunk(table + first, count, aligned.table, c);
    load_chunk(table + half + first, count, aligned.table, s);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float turned = a[j] * wa[j], other = b[j] * wb[j];
      x[j] = turned * c[j] - other * s[j];
      y[j] = other * c[j] + turned * s[j];
    }
    store_chunk(p.type, run.k, place + first, count, aligned.k, x);
    store_chunk(p.type, run.k, place + half + first, count, aligned.k, y);
  }
}

// =====================================================================================================================

// Whether chunks of rows of `length` elements are aligned in all of them (null: none has to be).
bool all_aligned(DType type, int64_t length, std::initializer_list<const void*> bases) {
  for (const void* base : bases) {
    if (base != nullptr && !chunks_aligned(base, type, length)) return false;
  }
  return true;
}

}  // namespace

void commit_rows(const CommitParams& params, Stream& stream) {
  const KvAligned aligned = {all_aligned(params.k_type, params.head_dim, {params.pass_k, params.ring_k}),
                             all_aligned(params.v_type, params.head_dim, {params.pass_v, params.ring_v})};
  launch_on(cuda_stream(stream), "commit_rows", {params.layers * params.count, params.kv_heads, 32}, commit_rows_kernel,
            params, aligned);
}

void fill_ring(const FillRingParams& params, Stream& stream) {
  const KvAligned aligned = {all_aligned(params.k_type, params.head_dim, {params.k, params.ring_k}),
                             all_aligned(params.v_type, params.head_dim, {params.v, params.ring_v})};
  launch_on(cuda_stream(stream), "fill_ring", {params.count, params.kv_heads, 32}, fill_ring_kernel, params, aligned);
}

void place_rows(const PlaceRowsParams& params, Stream& stream) {
  const int64_t half = params.head_dim / 2, rows = params.sinks + params.keep * params.chunk_rows;
  const KvAligned aligned = {all_aligned(params.k_type, half, {params.sink_k, params.ring_k, params.k_out}),
                             all_aligned(params.v_type, half, {params.sink_v, params.ring_v, params.v_out})};
  launch_on(cuda_stream(stream), "place_rows", {params.layers * rows, params.kv_heads, 32}, place_rows_kernel, params,
            aligned);
}

void make_keys(const MakeKeysParams& params, Stream& stream) {
  const int64_t half = params.head_dim / 2;
  int64_t rows = 0;
  KeysAligned aligned = {.k = half % kChunk == 0,
                         .v = half % kChunk == 0,
                         .table = chunks_aligned(params.cos_sin, DType::kF32, half),
                         .weight = chunks_aligned(params.weight, params.weight_type, half)};
  for (int64_t i = 0; i < params.count; ++i) {
    const MakeKeysParams::Run& run = params.runs[i];
    rows = std::max(rows, run.rows);
    for (const int64_t stride : {run.row_stride, run.head_stride}) {
      aligned.k = aligned.k && chunks_aligned(run.k, params.type, stride);
      aligned.v = aligned.v && chunks_aligned(run.v, params.type, stride);
    }
  }
  if (rows == 0) return;
  launch_on(cuda_stream(stream), "make_keys", {rows, params.count, 128}, make_keys_kernel, params, aligned);
}

}  // namespace headrace::kernels::cuda
