// Attention of one query with a few query heads of one KV head, by one thread block, in fp32 without tensor cores: for
// every element type and head_dim up to 512. Rows are processed in batches at absolute multiples of kPrefixTile:
// scores, then weights (online softmax), then o, whose sums are split into slices by the row's place in the batch and
// added in the order of positions. A block has one query, so nothing of another query can affect its bits. Device code,
// internal to kernels/attention.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/op.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/rows/cuda_rows.cuh"

namespace headrace::kernels::cuda {

constexpr int kRowsThreads = 256, kRowsWarps = kRowsThreads / 32;
constexpr int kRowsHeads = 4;  // query heads per block; a larger group uses more blocks
constexpr int kRowsDim = static_cast<int>(kMaxAttentionHeadDim);
static_assert(kRowsDim <= 2 * kRowsThreads);

// Two elements at an even offset of a row with an even start.
__device__ inline float2 load_pair(const void* from, DType type, int64_t index) {
  switch (type) {
    case DType::kF32:
      return *reinterpret_cast<const float2*>(static_cast<const float*>(from) + index);
    case DType::kF16:
      return __half22float2(*reinterpret_cast<const __half2*>(static_cast<const __half*>(from) + index));
    default:
      return __bfloat1622float2(
          *reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(from) + index));
  }
}
__device__ inline float load_one(const void* from, DType type, int64_t index) {
  switch (type) {
    case DType::kF32:
      return static_cast<const float*>(from)[index];
    case DType::kF16:
      return __half2float(static_cast<const __half*>(from)[index]);
    default:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[index]);
  }
}
__device__ inline void store_one(void* to, DType type, int64_t index, float value) {
  switch (type) {
    case DType::kF32:
      static_cast<float*>(to)[index] = value;
      break;
    case DType::kF16:
      static_cast<__half*>(to)[index] = __float2half_rn(value);
      break;
    default:
      static_cast<__nv_bfloat16*>(to)[index] = __float2bfloat16_rn(value);
  }
}

// e^x for x <= 0.
__device__ inline float weight_of(float x) { return exp2f(__fmul_rn(x, 1.44269504f)); }

// A row's m and l with the sink of its head folded in, and what its o is multiplied by.
struct SunkState {
  float m, l, keep;
};
__device__ inline SunkState with_sink(const float* sinks, int head, float m, float l) {
  if (sinks == nullptr) return {m, l, 1.0f};
  const float sink = sinks[head], top = fmaxf(m, sink), keep = weight_of(__fsub_rn(m, top));
  return {top, __fmaf_rn(l, keep, weight_of(__fsub_rn(sink, top))), keep};
}

// Two elements of a low-bit row (kernels/rows/op.h), at an even offset.
__device__ inline float2 load_low_bit_pair(const void* values, const __half* parameters, DType type, int d) {
  if (type == DType::kInt8) {
    const char2 pair = static_cast<const char2*>(values)[d / 2];
    const float scale = __half2float(*parameters);
    return {__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale)};
  }
  constexpr int kGroup = kInt4Group, kHalf = kGroup / 2;
  const int group = d / kGroup, place = d % kGroup, shift = place / kHalf * 4;
  const uchar2 pair = static_cast<const uchar2*>(values)[(group * kHalf + place % kHalf) / 2];
  const float scale = __half2float(parameters[2 * group]), minimum = __half2float(parameters[2 * group + 1]);
  return {__fmaf_rn(pair.x >> shift & 15, scale, minimum), __fmaf_rn(pair.y >> shift & 15, scale, minimum)};
}

// The addresses of a row of K and of V, and of the parameters of low-bit rows.
struct RowPlace {
  const void *k, *v;
};
struct LowBitPlace : RowPlace {
  const __half *k_parameters, *v_parameters;
};
__device__ inline const void* at(const void* base, DType type, int64_t index) {
  return static_cast<const char*>(base) + index * (type == DType::kF32 ? 4 : 2);
}

// kLowBit: K or V or both are low-bit rows.
template <bool kLowBit>
struct AttentionRowsOf {
  using Place = std::conditional_t<kLowBit, LowBitPlace, RowPlace>;
  struct Shared {
    float q[kRowsHeads][kRowsDim];
    float s[kRowsHeads][kPrefixTile];
    float keep[kRowsHeads], m[kRowsHeads], l[kRowsHeads];
    float2 o[kRowsHeads * kRowsThreads];
    Place place[kPrefixTile];
  };

  Shared& shared;
  const AttentionShape& shape;
  const int query, head, heads;  // query heads [head, head + heads)
  const int kv_head, pairs, threads_each, slices;
  float2 o[kRowsHeads] = {};  // this thread's two dims, for its slice of each batch

  // chunk: index among kv_heads x chunks of heads.
  __device__ AttentionRowsOf(Shared& memory, const AttentionShape& of, const void* q, int query_index, int chunk)
      : shared(memory),
        shape(of),
        query(query_index),
        head(first_head(of, chunk)),
        heads(min(kRowsHeads, group(of) - head % group(of))),
        kv_head(head / group(of)),
        pairs(static_cast<int>(of.head_dim / 2)),
        threads_each(pairs > 128  ? 256
                     : pairs > 64 ? 128
                                  : 64),
        slices(kRowsThreads / threads_each) {
    for (int i = threadIdx.x; i < heads * 2 * pairs; i += kRowsThreads) {
      const int h = i / (2 * pairs), d = i % (2 * pairs);
      shared.q[h][d] = load_one(q, shape.type, query * shape.q_stride + int64_t{head + h} * 2 * pairs + d);
    }
    if (threadIdx.x < kRowsHeads) {
      shared.m[threadIdx.x] = -INFINITY;
      shared.l[threadIdx.x] = 0.0f;
    }
  }
  __device__ static int group(const AttentionShape& of) { return static_cast<int>(of.heads / of.kv_heads); }
  __host__ __device__ static int chunks(const AttentionShape& of) {
    return static_cast<int>((of.heads / of.kv_heads + kRowsHeads - 1) / kRowsHeads);
  }
  __device__ static int first_head(const AttentionShape& of, int chunk) {
    return chunk / chunks(of) * group(of) + chunk % chunks(of) * kRowsHeads;
  }

  // Adds rows [skip, count) of a batch (0 <= skip < count <= kPrefixTile); place_of(i) returns the addresses of row i.
  template <typename PlaceOf>
  __device__ void see(int count, const PlaceOf& place_of, int skip = 0) {
    __syncthreads();  // the previous batch is done, and q is loaded
    if (threadIdx.x < count) shared.place[threadIdx.x] = place_of(static_cast<int>(threadIdx.x));
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int row = warp; row < count; row += kRowsWarps) {
      if (row >= skip) score(row, lane);
    }
    __syncthreads();
    if (warp < heads) weigh(warp, lane, skip, count);
    __syncthreads();
    add(skip, count);
  }

  // Adds the slices. Afterwards result() is o, and shared.m and shared.l are the rest of the state.
  __device__ void finish() {
    const int pair = threadIdx.x % threads_each, slice = threadIdx.x / threads_each;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kRowsHeads; ++h) {
      if (h < heads && pair < pairs) shared.o[place_of_sum(slice, h, pair)] = o[h];
    }
    __syncthreads();
    if (slice == 0 && pair < pairs) {
      for (int h = 0; h < heads; ++h) {
        float2 sum = shared.o[place_of_sum(0, h, pair)];
        for (int i = 1; i < slices; ++i) {
          const float2 other = shared.o[place_of_sum(i, h, pair)];
          sum.x = __fadd_rn(sum.x, other.x);
          sum.y = __fadd_rn(sum.y, other.y);
        }
        // + 0: a zero's sign must not depend on rows with weight 0.
        shared.o[place_of_sum(0, h, pair)] = {__fadd_rn(sum.x, 0.0f), __fadd_rn(sum.y, 0.0f)};
      }
    }
    __syncthreads();
  }
  __device__ float result(int h, int d) const {
    return reinterpret_cast<const float*>(&shared.o[place_of_sum(0, h, 0)])[d];
  }

 private:
  // Of a slice's sum of two dims.
  __device__ int place_of_sum(int slice, int h, int pair) const {
    return (slice * kRowsHeads + h) * threads_each + pair;
  }
  __device__ float2 key_pair(const Place& place, int d) const {
    if constexpr (kLowBit) {
      if (is_low_bit(shape.k_type)) return load_low_bit_pair(place.k, place.k_parameters, shape.k_type, d);
    }
    return load_pair(place.k, shape.k_type, d);
  }
  __device__ float2 value_pair(const Place& place, int d) const {
    if constexpr (kLowBit) {
      if (is_low_bit(shape.v_type)) return load_low_bit_pair(place.v, place.v_parameters, shape.v_type, d);
    }
    return load_pair(place.v, shape.v_type, d);
  }

  __device__ void score(int row, int lane) {
    float sum[kRowsHeads] = {};
    for (int pair = lane; pair < pairs; pair += 32) {
      const float2 k = key_pair(shared.place[row], 2 * pair);
#pragma unroll
      for (int h = 0; h < kRowsHeads; ++h) {
        sum[h] = __fmaf_rn(shared.q[h][2 * pair], k.x, sum[h]);  // for missing heads: unused
        sum[h] = __fmaf_rn(shared.q[h][2 * pair + 1], k.y, sum[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kRowsHeads; ++h) {
      sum[h] = warp_sum(sum[h]);
      if (lane == 0 && h < heads) shared.s[h][row] = __fmul_rn(sum[h], shape.scale);
    }
  }

  __device__ void weigh(int h, int lane, int skip, int count) {
    const float low = lane >= skip && lane < count ? shared.s[h][lane] : -INFINITY;
    const float high = lane + 32 >= skip && lane + 32 < count ? shared.s[h][lane + 32] : -INFINITY;
    const float top = fmaxf(warp_max(fmaxf(low, high)), shared.m[h]);  // never -inf or NaN: there is at least one row
    const float first = weight_of(low - top), second = weight_of(high - top);
    const float sum = warp_sum(__fadd_rn(first, second));
    shared.s[h][lane] = first;
    shared.s[h][lane + 32] = second;
    const float keep = weight_of(shared.m[h] - top);
    __syncwarp();
    if (lane == 0) {
      shared.keep[h] = keep;
      shared.m[h] = top;
      shared.l[h] = __fmaf_rn(shared.l[h], keep, sum);
    }
  }

  __device__ void add(int skip, int count) {
    const int pair = threadIdx.x % threads_each, slice = threadIdx.x / threads_each;
    if (pair >= pairs) return;
#pragma unroll
    for (int h = 0; h < kRowsHeads; ++h) {
      o[h].x = __fmul_rn(o[h].x, shared.keep[h]);
      o[h].y = __fmul_rn(o[h].y, shared.keep[h]);
    }
    const int each = static_cast<int>(kPrefixTile) / slices, end = min(count, (slice + 1) * each);
#pragma unroll 4
    for (int row = max(skip, slice * each); row < end; ++row) {
      const float2 v = value_pair(shared.place[row], 2 * pair);
#pragma unroll
      for (int h = 0; h < kRowsHeads; ++h) {
        o[h].x = __fmaf_rn(shared.s[h][row], v.x, o[h].x);
        o[h].y = __fmaf_rn(shared.s[h][row], v.y, o[h].y);
      }
    }
  }
};

using AttentionRows = AttentionRowsOf<false>;

// Adds the rows of positions [first, limit) in a segment for a block's query, in batches at multiples of kPrefixTile;
// place_of(i) returns the addresses of the segment's row i.
template <bool kLowBit, typename PlaceOf>
__device__ void see_batches(const KvSegment& segment, int first, int limit, AttentionRowsOf<kLowBit>* rows,
                            const PlaceOf& place_of) {
  constexpr int kTile = kPrefixTile;
  const int skip = max(first - segment.position, 0), end = min(limit - segment.position, segment.rows);
  if (skip >= end) return;
  for (int begin = skip / kTile * kTile; begin < end; begin += kTile) {
    rows->see(
        min(kTile, end - begin), [&](int i) { return place_of(begin + i); }, max(skip - begin, 0));
  }
}

__device__ inline void see_segment(const KvSegment& segment, int first, int limit, AttentionRows* rows) {
  const AttentionShape& shape = rows->shape;
  const int64_t base = int64_t{rows->kv_head} * segment.stride_rows * shape.head_dim;
  see_batches(segment, first, limit, rows, [&](int row) {
    const int64_t index = base + int64_t{row} * shape.head_dim;
    return RowPlace{at(segment.k, shape.k_type, index), at(segment.v, shape.v_type, index)};
  });
}

__device__ inline void see_segment(const KvSegment& segment, int first, int limit, AttentionRowsOf<true>* rows) {
  const AttentionShape& shape = rows->shape;
  see_batches(segment, first, limit, rows, [&](int row) {
    const auto row_of = [&](const void* plane, DType type) {
      return plane_row(plane, type, shape.kv_heads, segment.stride_rows, shape.head_dim, rows->kv_head,
                       segment.first_row + row);
    };
    const DevicePlaneRow k = row_of(segment.k, shape.k_type), v = row_of(segment.v, shape.v_type);
    return LowBitPlace{{k.values, v.values}, k.parameters, v.parameters};
  });
}

// first_seen() and tail_begin().
__device__ inline int first_seen_of(const AttentionShape& shape, int position) {
  const int window = static_cast<int>(min(shape.window, int64_t{INT32_MAX}));
  return window > 0 && position >= window ? position + 1 - window : 0;
}
__device__ inline int tail_begin_of(int position) {
  constexpr int kWindow = kTailWindow, kTile = kPrefixTile;
  return position < kWindow ? 0 : (position - kWindow) / kTile * kTile;
}

}  // namespace headrace::kernels::cuda
