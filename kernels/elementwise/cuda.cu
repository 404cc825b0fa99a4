// The small ops between the products. A thread processes chunks of eight elements; a row's bits depend only on its
// values and length. Compiled without contraction, like the CPU bodies: every FMA is explicit.
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/elementwise/bodies.h"
#include "kernels/elementwise/norm_threads.cuh"
#include "kernels/elementwise/silu.cuh"

namespace headrace::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKept = kNormKept;         // chunks of a row that a thread keeps in registers
constexpr int kWarpChunk = 32 * kChunk;  // elements that a warp reads at once

// ---- embedding ------------------------------------------------------------------------------------------------------

// Grid: rows.
__global__ void __launch_bounds__(kThreads) embedding_kernel(EmbeddingParams p, bool aligned) {
  const int64_t row = blockIdx.x, id = p.ids[row];
  device_check(id >= 0 && id < p.vocab);
  if (p.out_type == p.type) {
    copy_row(at(p.out, row * p.hidden, p.type), at(p.table, id * p.hidden, p.type), p.hidden * bytes_of(p.type),
             aligned);
    return;
  }
  for (int64_t col = static_cast<int64_t>(threadIdx.x) * kChunk; col < p.hidden; col += kThreads * kChunk) {
    float values[kChunk];
    const int count = chunk_count(p.hidden, col);
    load_chunk(p.type, p.table, id * p.hidden + col, count, aligned, values);
    store_chunk(p.out_type, p.out, row * p.hidden + col, count, aligned, values);
  }
}

// A norm's weights; null: 1.
__device__ void load_weights(DType type, const void* weight, int64_t col, int count, bool aligned,
                             float (&to)[kChunk]) {
  if (weight != nullptr) return load_chunk(type, weight, col, count, aligned, to);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i] = 1.0f;
}

// ---- rms_norm -------------------------------------------------------------------------------------------------------

// The sum over the block, in every thread: lanes by halves, then warps in order.
__device__ float block_sum(float value) {
  __shared__ float of_warp[kNormThreads / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = of_warp[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) sum += of_warp[warp];
  return sum;
}

// Grid: rows. A row that fits is read once and kept in registers.
template <bool kAdds>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(RmsNormParams p, bool aligned) {
  const int64_t in = blockIdx.x * p.x_stride, out = blockIdx.x * p.out_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kChunk, step = static_cast<int64_t>(blockDim.x) * kChunk;
  float kept[kKept][kChunk], x[kChunk], weight[kChunk];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    load_chunk(p.x_type, p.x, in + first + i * step, chunk_count(p.cols, first + i * step), aligned, kept[i]);
  }
  float squares = 0.0f;
  const auto add = [&](const float(&values)[kChunk]) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) squares = fmaf(values[i], values[i], squares);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) add(kept[i]);
  for (int64_t col = first + kKept * step; col < p.cols; col += step) {
    load_chunk(p.x_type, p.x, in + col, chunk_count(p.cols, col), aligned, x);
    add(x);
  }
  const float scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(p.cols) + p.eps);
  const float factor = kAdds && p.factor != nullptr ? load_one(p.type, p.factor, 0) : 1.0f;
  const auto finish = [&](const float(&values)[kChunk], int64_t col) {
    const int count = chunk_count(p.cols, col);
    load_weights(p.type, p.weight, col, count, aligned, weight);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = values[i] * scale * weight[i];
    if constexpr (kAdds) {
      load_chunk(p.x_type, p.residual, out + col, count, aligned, weight);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) x[i] = (weight[i] + x[i]) * factor;
    }
    store_chunk(kAdds || p.wide ? p.x_type : p.type, p.out, out + col, count, aligned, x);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) finish(kept[i], first + i * step);
  for (int64_t col = first + kKept * step; col < p.cols; col += step) {
    load_chunk(p.x_type, p.x, in + col, chunk_count(p.cols, col), aligned, x);
    finish(x, col);
  }
}

// ---- rope -----------------------------------------------------------------------------------------------------------

struct RopeAligned {
  bool qkv, k_out, v_out, table, norms;
};

// Elements [i, i + kChunk) of a head's halves.
struct Halves {
  float a[kChunk], b[kChunk];
};
__device__ Halves load_halves(const RopeParams& p, const void* in, int64_t from, bool aligned, int64_t i) {
  const int64_t half = p.head_dim / 2;
  const int count = chunk_count(half, i);
  Halves halves;
  load_chunk(p.type, in, from + i, count, aligned, halves.a);
  load_chunk(p.type, in, from + half + i, count, aligned, halves.b);
  return halves;
}

__device__ void rotate_chunk(const RopeParams& p, const Halves& halves, const float* cos_sin, int64_t i, void* out,
                             int64_t to, DType out_type, bool out_aligned, bool table_aligned) {
  const int64_t half = p.head_dim / 2;
  const int count = chunk_count(half, i);
  float a[kChunk], b[kChunk], c[kChunk], s[kChunk];
  load_chunk(cos_sin + i, count, table_aligned, c);
  load_chunk(cos_sin + half + i, count, table_aligned, s);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    a[j] = halves.a[j] * c[j] - halves.b[j] * s[j];
    b[j] = halves.b[j] * c[j] + halves.a[j] * s[j];
  }
  store_chunk(out_type, out, to + i, count, out_aligned, a);
  store_chunk(out_type, out, to + half + i, count, out_aligned, b);
}

// Grid: rows x blocks of work; a row's work is chunks of its heads' halves: q, then k, then v (two chunks a thread).
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeParams p, RopeAligned aligned) {
  const int64_t half = p.head_dim / 2, chunks = (half + kChunk - 1) / kChunk;
  const int64_t item = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (item >= (p.heads + 2 * p.kv_heads) * chunks) return;
  const int64_t row = blockIdx.x, position = p.positions[row];
  device_check(position >= 0 && position < p.table_rows);
  const float* cos_sin = p.cos_sin + position * p.head_dim;
  const int64_t slot = item / chunks, i = item % chunks * kChunk;
  const int64_t in = row * p.qkv_stride;
  if (slot < p.heads) {
    const int64_t q = in + slot * p.head_dim;
    rotate_chunk(p, load_halves(p, p.q, q, aligned.qkv, i), cos_sin + p.q_table, i, p.q, q, p.type, aligned.qkv,
                 aligned.table);
    return;
  }
  const int64_t head = (slot - p.heads) % p.kv_heads;
  const int64_t out_row = p.out_first == nullptr ? row : *p.out_first + row;
  const int64_t from = in + head * p.head_dim, to = out_row * p.out_row_stride + head * p.out_head_stride;
  if (slot < p.heads + p.kv_heads) {
    rotate_chunk(p, load_halves(p, p.k, from, aligned.qkv, i), cos_sin, i, p.k_out, to, p.k_type, aligned.k_out,
                 aligned.table);
    return;
  }
  const int count = chunk_count(half, i);
  float values[kChunk];
  for (int64_t at_half = 0; at_half < p.head_dim; at_half += half) {
    load_chunk(p.type, p.v, from + at_half + i, count, aligned.qkv, values);
    store_chunk(p.v_type, p.v_out, to + at_half + i, count, aligned.v_out, values);
  }
}

// A head that a warp normalises, with the order of sums that rms_norm_kernel has for a row of its length, as rounded
// elements in shared memory.
__device__ void normalise_head(const RopeParams& p, const void* in, int64_t from, bool aligned, const void* weight,
                               bool weight_aligned, float* to) {
  static_assert(kMaxNormedHeadDim <= kKept * kWarpChunk);
  const int64_t first = threadIdx.x % 32 * kChunk;
  float x[kKept][kChunk], w[kChunk], squares = 0.0f;
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    const int64_t i = first + n * kWarpChunk;
    load_chunk(p.type, in, from + i, chunk_count(p.head_dim, i), aligned, x[n]);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) squares = fmaf(x[n][j], x[n][j], squares);
  }
  squares = warp_sum(squares);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(p.head_dim) + p.eps);
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    const int64_t i = first + n * kWarpChunk;
    const int count = chunk_count(p.head_dim, i);
    load_weights(p.type, weight, i, count, weight_aligned, w);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (j < count) to[i + j] = rounded_to(p.type, x[n][j] * scale * w[j]);
    }
  }
}

// Grid: rows x blocks of heads: q, then k, then v. A warp has a head.
__global__ void __launch_bounds__(kThreads) norm_rope_kernel(RopeParams p, RopeAligned aligned) {
  __shared__ float heads[kThreads / 32][kMaxNormedHeadDim];
  const int warp = threadIdx.x / 32;
  const int64_t slot = static_cast<int64_t>(blockIdx.y) * (kThreads / 32) + warp;
  if (slot >= p.heads + 2 * p.kv_heads) return;
  const int64_t row = blockIdx.x, position = p.positions[row], half = p.head_dim / 2;
  device_check(position >= 0 && position < p.table_rows);
  const bool is_q = slot < p.heads, is_v = slot >= p.heads + p.kv_heads;
  const float* const cos_sin = p.cos_sin + position * p.head_dim + (is_q ? p.q_table : 0);
  const int64_t head = is_q ? slot : (slot - p.heads) % p.kv_heads;
  const int64_t out_row = p.out_first == nullptr ? row : *p.out_first + row;
  const int64_t from = row * p.qkv_stride + head * p.head_dim;
  const int64_t to = is_q ? from : out_row * p.out_row_stride + head * p.out_head_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x % 32) * kChunk;
  if (is_v) {
    if (p.v_norm) normalise_head(p, p.v, from, aligned.qkv, nullptr, false, heads[warp]);
    for (int64_t i = first; i < p.head_dim; i += kWarpChunk) {  // a lane reads what it has written
      float values[kChunk];
      const int count = chunk_count(p.head_dim, i);
      if (p.v_norm) {
        load_chunk(heads[warp] + i, count, false, values);
      } else {
        load_chunk(p.type, p.v, from + i, count, aligned.qkv, values);
      }
      store_chunk(p.v_type, p.v_out, to + i, count, aligned.v_out, values);
    }
    return;
  }
  normalise_head(p, is_q ? p.q : p.k, from, aligned.qkv, is_q ? p.q_norm : p.k_norm, aligned.norms, heads[warp]);
  __syncwarp();
  if (first >= half) return;
  Halves halves;
  const int count = chunk_count(half, first);
  load_chunk(heads[warp] + first, count, false, halves.a);
  load_chunk(heads[warp] + half + first, count, false, halves.b);
  rotate_chunk(p, halves, cos_sin, first, is_q ? p.q : p.k_out, to, is_q ? p.type : p.k_type,
               is_q ? aligned.qkv : aligned.k_out, aligned.table);
}

// ---- rope_table -----------------------------------------------------------------------------------------------------

// Grid: rows x blocks of pairs. In double, like the CPU body: an angle is as large as a position.
__global__ void __launch_bounds__(kThreads) rope_table_kernel(RopeTableParams p) {
  const int64_t half = p.head_dim / 2, i = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (i >= half) return;
  float* const cosines = p.cos_sin + static_cast<int64_t>(blockIdx.x) * p.head_dim;
  const float angle = static_cast<float>(blockIdx.x) * p.inv_freq[i];
  double sine, cosine;
  sincos(static_cast<double>(angle), &sine, &cosine);
  const double grown = p.beta == 0 ? 1.0 : 1.0 + p.beta * log(static_cast<double>(1 + blockIdx.x / p.step));
  const float scale = p.inv_freq[i] == 0 ? 1.0f : p.scale * static_cast<float>(grown);
  cosines[i] = static_cast<float>(cosine) * scale;
  cosines[half + i] = static_cast<float>(sine) * scale;
}

// ---- silu_mul -------------------------------------------------------------------------------------------------------

// Grid: rows x blocks of chunks.
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulParams p, bool aligned) {
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kChunk;
  if (col >= p.cols) return;
  const int64_t row = blockIdx.x;
  const int count = chunk_count(p.cols, col);
  float gate[kChunk], up[kChunk];
  load_chunk(p.type, p.gate_up, row * p.gate_stride + col, count, aligned, gate);
  load_chunk(p.type, p.up, row * p.up_stride + col, count, aligned, up);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) gate[i] = activated_times(p.activation, gate[i], up[i]);
  store_chunk(p.type, p.out, row * p.cols + col, count, aligned, gate);
}

// ---- gate_rows ------------------------------------------------------------------------------------------------------

// Grid: rows x blocks of chunks of the heads.
__global__ void __launch_bounds__(kThreads) gate_rows_kernel(GateRowsParams p, bool aligned) {
  const int64_t chunks = (p.head_dim + kChunk - 1) / kChunk;
  const int64_t item = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (item >= p.heads * chunks) return;
  const int64_t row = blockIdx.x, head = item / chunks, col = item % chunks * kChunk;
  const int count = chunk_count(p.head_dim, col);
  const int64_t at_y = (row * p.heads + head) * p.head_dim + col;
  float gate[kChunk], y[kChunk];
  load_chunk(p.type, p.gate, row * p.gate_stride + head * p.gate_head_stride + col, count, aligned, gate);
  load_chunk(p.type, p.y, at_y, count, aligned, y);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) y[i] = y[i] / (expf(-gate[i]) + 1.0f);
  store_chunk(p.type, p.y, at_y, count, aligned, y);
}

// ---- scale, softcap -------------------------------------------------------------------------------------------------

// Grid: blocks of chunks.
__global__ void __launch_bounds__(kThreads) scale_kernel(ScaleParams p, bool aligned) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kChunk;
  if (first >= p.count) return;
  const int count = chunk_count(p.count, first);
  float values[kChunk];
  load_chunk(p.x_type, p.x, first, count, aligned, values);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) values[i] = rounded_to(p.type, values[i] * p.factor);
  store_chunk(p.x_type, p.x, first, count, aligned, values);
}

// Grid: blocks of elements.
__global__ void __launch_bounds__(kThreads) softcap_kernel(SoftcapParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < p.count) p.x[i] = tanhf(p.x[i] / p.cap) * p.cap;
}

// ---- convert --------------------------------------------------------------------------------------------------------

// Grid: blocks of chunks.
__global__ void __launch_bounds__(kThreads) convert_kernel(ConvertParams p, bool aligned) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kChunk;
  if (first >= p.count) return;
  const int count = chunk_count(p.count, first);
  float values[kChunk];
  load_chunk(p.in_type, p.in, first, count, aligned, values);
  store_chunk(p.out_type, p.out, first, count, aligned, values);
}

// =====================================================================================================================

int64_t blocks(int64_t work) { return ceil_div(work, kThreads); }

}  // namespace

void embedding(const EmbeddingParams& params, Stream& stream) {
  const bool aligned = chunks_aligned(params.table, params.type, params.hidden) &&
                       chunks_aligned(params.out, params.out_type, params.hidden);
  launch_on(cuda_stream(stream), "embedding", {params.rows, 1, kThreads}, embedding_kernel, params, aligned);
}

void rms_norm(const RmsNormParams& params, Stream& stream) {
  const bool adds = params.residual != nullptr;
  const DType out_type = adds || params.wide ? params.x_type : params.type;
  const bool aligned = chunks_aligned(params.x, params.x_type, params.x_stride) &&
                       chunks_aligned(params.out, out_type, params.out_stride) &&
                       chunks_aligned(params.residual, out_type, params.out_stride) &&
                       chunks_aligned(params.weight, params.type, params.cols);
  launch_on(cuda_stream(stream), "rms_norm", {params.rows, 1, norm_threads(params.cols)},
            adds ? rms_norm_kernel<true> : rms_norm_kernel<false>, params, aligned);
}

void rope(const RopeParams& params, Stream& stream) {
  const int64_t half = params.head_dim / 2;
  const auto out_aligned = [&](const void* out, DType type) {
    return chunks_aligned(out, type, params.out_row_stride) && chunks_aligned(out, type, params.out_head_stride) &&
           chunks_aligned(out, type, half);
  };
  const RopeAligned aligned = {chunks_aligned(params.q, params.type, params.qkv_stride) &&
                                   chunks_aligned(params.k, params.type, half) &&
                                   chunks_aligned(params.v, params.type, half),
                               out_aligned(params.k_out, params.k_type), out_aligned(params.v_out, params.v_type),
                               chunks_aligned(params.cos_sin, DType::kF32, half),
                               chunks_aligned(params.q_norm, params.type, params.head_dim) &&
                                   chunks_aligned(params.k_norm, params.type, params.head_dim)};
  const int64_t heads = params.heads + 2 * params.kv_heads, work = heads * ceil_div(half, kChunk);
  if (params.q_norm != nullptr) {
    return launch_on(cuda_stream(stream), "norm_rope", {params.rows, ceil_div(heads, kThreads / 32), kThreads},
                     norm_rope_kernel, params, aligned);
  }
  launch_on(cuda_stream(stream), "rope", {params.rows, blocks(work), kThreads}, rope_kernel, params, aligned);
}

void rope_table(const RopeTableParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "rope_table", {params.rows, blocks(params.head_dim / 2), kThreads}, rope_table_kernel,
            params);
}

void silu_mul(const SiluMulParams& params, Stream& stream) {
  const bool aligned = chunks_aligned(params.gate_up, params.type, params.gate_stride) &&
                       chunks_aligned(params.up, params.type, params.up_stride) &&
                       chunks_aligned(params.out, params.type, params.cols);
  launch_on(cuda_stream(stream), "silu_mul", {params.rows, blocks(ceil_div(params.cols, kChunk)), kThreads},
            silu_mul_kernel, params, aligned);
}

void gate_rows(const GateRowsParams& params, Stream& stream) {
  const bool aligned = chunks_aligned(params.y, params.type, params.head_dim) &&
                       chunks_aligned(params.gate, params.type, params.gate_stride) &&
                       chunks_aligned(params.gate, params.type, params.gate_head_stride);
  const int64_t work = params.heads * ceil_div(params.head_dim, kChunk);
  launch_on(cuda_stream(stream), "gate_rows", {params.rows, blocks(work), kThreads}, gate_rows_kernel, params, aligned);
}

void scale(const ScaleParams& params, Stream& stream) {
  const bool aligned = chunks_aligned(params.x, params.x_type, kChunk);
  launch_on(cuda_stream(stream), "scale", {blocks(ceil_div(params.count, kChunk)), 1, kThreads}, scale_kernel, params,
            aligned);
}

void softcap(const SoftcapParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "softcap", {blocks(params.count), 1, kThreads}, softcap_kernel, params);
}

void convert(const ConvertParams& params, Stream& stream) {
  const bool aligned =
      chunks_aligned(params.in, params.in_type, kChunk) && chunks_aligned(params.out, params.out_type, kChunk);
  launch_on(cuda_stream(stream), "convert", {blocks(ceil_div(params.count, kChunk)), 1, kThreads}, convert_kernel,
            params, aligned);
}

}  // namespace headrace::kernels::cuda
