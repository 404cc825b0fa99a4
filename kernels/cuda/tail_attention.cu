// The tail of decode attention, in the order of positions along each query's path, and the end: the fold with the
// prefix's state. Also the empty states.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

// A block: one query, some heads. Batches begin at absolute multiples of kPrefixTile, as tail_begin is one.
__global__ void __launch_bounds__(kRowsThreads) tail_rows(const __grid_constant__ TailAttentionParams params) {
  __shared__ AttentionRows::Shared shared;
  const AttentionShape& shape = params.shape;
  const int query = blockIdx.x, dim = static_cast<int>(shape.head_dim);
  const int t = params.positions[query], committed = *params.committed;
  const int32_t* path = params.path + query * params.path_stride;
  AttentionRows rows(shared, shape, params.q, query, blockIdx.y);
  for (int begin = tail_begin_of(t); begin <= t; begin += kPrefixTile) {
    rows.see(min(static_cast<int>(kPrefixTile), t + 1 - begin), [&](int i) {
      const int p = begin + i;
      const bool in_ring = p < committed;
      const int64_t row = in_ring ? rows.kv_head * params.ring_rows + p % params.ring_rows
                                  : path[p - committed] * shape.kv_heads + rows.kv_head;
      return RowPlace{at(in_ring ? params.ring_k : params.pass_k, shape.k_type, row * dim),
                      at(in_ring ? params.ring_v : params.pass_v, shape.v_type, row * dim)};
    });
  }
  rows.finish();
  for (int i = threadIdx.x; i < rows.heads * dim; i += kRowsThreads) {
    const int h = i / dim, d = i % dim;
    const int64_t state = query * shape.heads + rows.head + h;
    const float prefix_m = params.state.ml[2 * state], prefix_l = params.state.ml[2 * state + 1];
    const float top = fmaxf(prefix_m, shared.m[h]);  // a number: a query sees at least itself
    const float keep = weight_of(__fsub_rn(prefix_m, top)), add = weight_of(__fsub_rn(shared.m[h], top));
    const float o = __fmaf_rn(rows.result(h, d), add, __fmul_rn(params.state.o[state * dim + d], keep));
    const float l = __fmaf_rn(shared.l[h], add, __fmul_rn(prefix_l, keep));
    store_one(params.out, shape.type, state * dim + d, __fadd_rn(__fdiv_rn(o, l), 0.0f));
  }
}

constexpr int kClearThreads = 256;

__global__ void __launch_bounds__(kClearThreads) clear_states(const __grid_constant__ ClearStateParams params) {
  const int64_t states = params.queries * params.heads, i = int64_t{blockIdx.x} * kClearThreads + threadIdx.x;
  if (i < states * params.head_dim) params.state.o[i] = 0.0f;
  if (i < states) {
    params.state.ml[2 * i] = -INFINITY;
    params.state.ml[2 * i + 1] = 0.0f;
  }
}

}  // namespace

void tail_attention(const TailAttentionParams& params, Stream& stream) {
  const AttentionShape& shape = params.shape;
  const dim3 grid(static_cast<unsigned>(shape.queries),
                  static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)));
  launch(tail_rows, "tail_rows", grid, kRowsThreads, 0, params, cuda_stream(stream));
}

void clear_state(const ClearStateParams& params, Stream& stream) {
  const int64_t values = params.queries * params.heads * params.head_dim;
  launch(clear_states, "clear_states", dim3(static_cast<unsigned>(ceil_div(values, kClearThreads))), kClearThreads, 0,
         params, cuda_stream(stream));
}

}  // namespace headrace::kernels::cuda
