// The remainders of int8 rows (kernels/rows/op.h). A warp makes a run; a lane has kEach values of each of its steps.
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/rows/bodies.h"
#include "kernels/rows/cuda_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kEach = 8, kStep = 32 * kEach, kSteps = static_cast<int>(kRemainderRun) / kStep;
static_assert(kSteps * kStep == kRemainderRun);
constexpr unsigned kAll = 0xffffffff;
constexpr uint32_t kListed = 255, kZero = 126;
constexpr int kMaxAbove = 254, kMaxBelow = 125;

// Where the values of this warp's run are.
struct Run {
  uint16_t* exact;  // of the run's first value, as the next two
  const uint32_t* values;
  uint8_t* codes;
  const __half* scales;  // of the plane's first row
  uint32_t* start;
  uint16_t* list;
  uint32_t first, head_dim, lane;
  bool exists;

  // `index` counts the runs of K, then those of V.
  __device__ Run(const KvSegment& exact_rows, const KvSegment& rows, const void* remainders, int64_t kv_heads,
                 int64_t dim, uint32_t index) {
    const auto plane_values = static_cast<uint32_t>(kv_heads * exact_rows.stride_rows * dim);
    const uint32_t runs = plane_values / kRemainderRun;
    exists = index < 2 * runs;
    const bool k = index < runs;
    first = (k ? index : index - runs) * static_cast<uint32_t>(kRemainderRun);
    head_dim = static_cast<uint32_t>(dim);
    lane = threadIdx.x % 32;
    const char* const plane = static_cast<const char*>(k ? rows.k : rows.v);
    values = reinterpret_cast<const uint32_t*>(plane + first);
    scales = reinterpret_cast<const __half*>(plane + plane_values);
    exact = static_cast<uint16_t*>(const_cast<void*>(k ? exact_rows.k : exact_rows.v)) + first;
    uint8_t* const all = static_cast<uint8_t*>(const_cast<void*>(remainders));
    codes = all + (k ? 0 : plane_values) + first;
    start = reinterpret_cast<uint32_t*>(all + 2 * plane_values) + index;
    list = reinterpret_cast<uint16_t*>(all + 2 * plane_values + 2 * runs * sizeof(uint32_t));
  }

  __device__ uint32_t place(int step) const { return static_cast<uint32_t>(step) * kStep + lane * kEach; }
  __device__ float scale(int step) const {  // of this lane's row; one that is not finite counts as 0
    const __half s = scales[(first + place(step)) / head_dim];
    return (__half_as_ushort(s) & 0x7fff) < 0x7c00 ? __half2float(s) : 0.0f;
  }
  __device__ uint2 eight_values(int step) const {
    return *reinterpret_cast<const uint2*>(reinterpret_cast<const char*>(values) + place(step));
  }
  __device__ uint2& eight_codes(int step) const { return *reinterpret_cast<uint2*>(codes + place(step)); }
  __device__ uint4& eight_exact(int step) const { return *reinterpret_cast<uint4*>(exact + place(step)); }
};

__device__ uint32_t byte_of(const uint2& bytes, int i) {
  return __byte_perm(i < 4 ? bytes.x : bytes.y, 0, 0x4440u | static_cast<unsigned>(i % 4));
}
__device__ uint32_t half_of(const uint4& halves, int i) {
  const uint32_t word = i < 2 ? halves.x : i < 4 ? halves.y : i < 6 ? halves.z : halves.w;
  return i % 2 == 0 ? word & 0xffff : word >> 16;
}
__device__ void set_half(uint4& halves, int i, uint32_t value) {
  uint32_t& word = i < 2 ? halves.x : i < 4 ? halves.y : i < 6 ? halves.z : halves.w;
  word = i % 2 == 0 ? value : word | value << 16;
}

// The magnitude bits of (|q| - 1/2) * scale, of scale / 2 if q = 0. `magnitude`: |q|. 2^23 + |q| is the float whose low
// bits are |q|; both operations are exact.
__device__ uint32_t base_of(uint32_t magnitude, float scale) {
  const float q = __uint_as_float(0x4b000000u | magnitude) - 8388608.0f;
  return (__float_as_uint(__fmaf_rn(q, scale, -0.5f * scale)) >> 16) & 0x7fff;
}

__device__ uint32_t encoded(uint32_t value, uint32_t q, uint32_t magnitude, float scale) {
  const int size = static_cast<int>(value & 0x7fff), base = static_cast<int>(base_of(magnitude, scale));
  if (q != 0) {
    const int above = size - base;
    return (value >> 15) == (q >> 7) && above >= 0 && above <= kMaxAbove ? static_cast<uint32_t>(above) : kListed;
  }
  const uint32_t negative = value >> 15 << 7;
  if (size == 0) return kZero | negative;
  const int below = base - size;
  return below >= 0 && below <= kMaxBelow ? static_cast<uint32_t>(below) | negative : kListed;
}

// REQUIRES: the value is not in the list.
__device__ uint32_t decoded(uint32_t code, uint32_t q, uint32_t magnitude, float scale) {
  const uint32_t base = base_of(magnitude, scale), low = code & 127;
  const uint32_t small = low == kZero ? 0 : base - low;
  return q != 0 ? (base + code) | (q & 128) << 8 : small | (code & 128) << 8;
}

// How many of the bytes are kListed.
__device__ uint32_t listed_in(const uint2& codes) {
  return static_cast<uint32_t>(__popc(__vcmpeq4(codes.x, 0xffffffff)) + __popc(__vcmpeq4(codes.y, 0xffffffff))) / 8;
}

// The sum over lanes below this one; *all: over all lanes.
__device__ uint32_t sum_below(uint32_t count, uint32_t lane, uint32_t* all) {
  uint32_t sum = count;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAll, sum, distance);
    if (lane >= static_cast<uint32_t>(distance)) sum += other;
  }
  *all = __shfl_sync(kAll, sum, 31);
  return sum - count;
}

__global__ void __launch_bounds__(kThreads)
    encode_kernel(const __grid_constant__ EncodeRemaindersParams p, uint32_t capacity) {
  const Run run(p.exact, p.rows, p.remainders, p.kv_heads, p.head_dim, blockIdx.x * kWarps + threadIdx.x / 32);
  if (!run.exists) return;
  uint32_t place[kSteps], total = 0;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint4 exact = run.eight_exact(step);
    const uint2 values = run.eight_values(step), magnitudes = {__vabs4(values.x), __vabs4(values.y)};
    const float scale = run.scale(step);
    uint2 codes = {0, 0};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t code = encoded(half_of(exact, i), byte_of(values, i), byte_of(magnitudes, i), scale);
      (i < 4 ? codes.x : codes.y) |= code << (8 * (i % 4));
    }
    run.eight_codes(step) = codes;
    uint32_t all = 0;
    place[step] = total + sum_below(listed_in(codes), run.lane, &all);
    total += all;
  }
  uint32_t start = 0;
  if (run.lane == 0) *run.start = start = atomicAdd(p.listed, total);
  start = __shfl_sync(kAll, start, 0);
  if (start + total > capacity) return;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {  // this lane's own bytes
    const uint2 codes = run.eight_codes(step);
    const uint4 exact = run.eight_exact(step);
    uint32_t next = start + place[step];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (byte_of(codes, i) == kListed) run.list[next++] = static_cast<uint16_t>(half_of(exact, i));
    }
  }
}

__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ DecodeRemaindersParams p) {
  const DecodeRemaindersParams::Segment& segment = p.segments[blockIdx.y];
  const Run run(segment.exact, segment.rows, segment.remainders, p.kv_heads, p.head_dim,
                blockIdx.x * kWarps + threadIdx.x / 32);
  if (!run.exists) return;
  uint2 codes[kSteps], values[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {  // all in flight before the first is used
    codes[step] = run.eight_codes(step);
    values[step] = run.eight_values(step);
  }
  uint32_t first = *run.start;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t all = 0;
    const uint32_t listed = listed_in(codes[step]);
    uint32_t next = first + sum_below(listed, run.lane, &all);
    first += all;
    const uint2 magnitudes = {__vabs4(values[step].x), __vabs4(values[step].y)};
    const float scale = run.scale(step);
    uint4 exact = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t code = byte_of(codes[step], i);
      uint32_t value = decoded(code, byte_of(values[step], i), byte_of(magnitudes, i), scale);
      if (code == kListed) value = run.list[next++];
      set_half(exact, i, value);
    }
    run.eight_exact(step) = exact;
  }
}

int64_t values_of(const KvSegment& segment, int64_t kv_heads, int64_t head_dim) {  // K's and V's
  return 2 * kv_heads * segment.stride_rows * head_dim;
}
int64_t blocks_of(int64_t values) { return ceil_div(values / kRemainderRun, kWarps); }

}  // namespace

void encode_remainders(const EncodeRemaindersParams& params, Stream& stream) {
  const int64_t values = values_of(params.exact, params.kv_heads, params.head_dim);
  const auto capacity = static_cast<uint32_t>(remainder_list_capacity(static_cast<uint64_t>(values)));
  launch_on(cuda_stream(stream), "encode_remainders", Grid{blocks_of(values), 1, kThreads}, encode_kernel, params,
            capacity);
}

void decode_remainders(const DecodeRemaindersParams& params, Stream& stream) {
  int64_t values = 0;
  for (int64_t i = 0; i < params.count; ++i) {
    values = std::max(values, values_of(params.segments[i].exact, params.kv_heads, params.head_dim));
  }
  launch_on(cuda_stream(stream), "decode_remainders", Grid{blocks_of(values), params.count, kThreads}, decode_kernel,
            params);
}

}  // namespace headrace::kernels::cuda
