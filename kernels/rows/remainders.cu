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

// 0xff where the byte's highest bit is set, else 0.
__device__ uint32_t spread(uint32_t bytes) {  // __byte_perm() does not repeat signs
  uint32_t spread;
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(spread) : "r"(bytes));
  return spread;
}

// Four values of a row, with what their bytes say all at once.
struct Four {
  uint32_t magnitudes;    // |q|
  uint32_t above, below;  // what is added to the base, and what is taken from it; 0 for other values
  uint32_t signs;         // 128: negative
  uint32_t others;        // 0xff: a zero or a value in the list

  __device__ Four(uint32_t codes, uint32_t q) {
    const uint32_t negative = spread(q), low = codes & 0x7f7f7f7f;
    magnitudes = (q ^ negative) + (negative & 0x01010101);  // at most 127, so that nothing is carried
    const uint32_t zero = ~spread(magnitudes + 0x7f7f7f7f);
    const uint32_t not_listed = ((~codes & 0x7f7f7f7f) + 0x7f7f7f7f) | ~codes;
    const uint32_t not_zero = (low ^ 0x01010101 * kZero) + 0x7f7f7f7f;
    others = spread(~(not_listed & (not_zero | ~zero)));
    above = codes & ~zero & ~others;
    below = low & zero & ~others;
    signs = (zero & codes) | (~zero & q);
  }

  // Values i and i + 1, i even, in the halves of a word.
  __device__ uint32_t pair(int i, float scale) const {
    const unsigned low = static_cast<unsigned>(i), bytes = 0x4040u | low | (low + 1) << 8;
    const uint32_t base = __byte_perm(base_bits(i, scale), base_bits(i + 1, scale), 0x7632) & 0x7fff7fff;
    const uint32_t sign = __byte_perm(signs, 0, 0x0404u | low << 4 | (low + 1) << 12) & 0x80008000;
    return (base + __byte_perm(above, 0, bytes) - __byte_perm(below, 0, bytes)) | sign;
  }

 private:
  __device__ uint32_t base_bits(int i, float scale) const {
    const float q = __uint_as_float(__byte_perm(magnitudes, 0x4b000000u, 0x7440u | static_cast<unsigned>(i)));
    return __float_as_uint(__fmaf_rn(q - 8388608.0f, scale, -0.5f * scale));
  }
};

// How many of the bytes are kListed.
__device__ uint32_t listed_in(const uint2& codes) {
  return static_cast<uint32_t>(__popc(__vcmpeq4(codes.x, 0xffffffff)) + __popc(__vcmpeq4(codes.y, 0xffffffff))) / 8;
}

// Bit i for byte i of eight, each 0 or 0xff.
__device__ uint32_t one_bit_each(uint32_t low, uint32_t high) {
  const auto four = [](uint32_t bytes) { return (bytes & 0x08040201) * 0x01010101 >> 24; };
  return four(low) | four(high) << 4;
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
    const float scale = run.scale(step);
    const Four low(codes[step].x, values[step].x), high(codes[step].y, values[step].y);
    run.eight_exact(step) = {low.pair(0, scale), low.pair(2, scale), high.pair(0, scale), high.pair(2, scale)};
    for (uint32_t others = one_bit_each(low.others, high.others); others != 0; others &= others - 1) {
      const int i = __ffs(static_cast<int>(others)) - 1;
      const uint32_t code = (i < 4 ? codes[step].x : codes[step].y) >> (8 * (i % 4)) & 0xff;
      run.exact[run.place(step) + i] = code == kListed ? run.list[next++] : static_cast<uint16_t>((code & 128) << 8);
    }
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
