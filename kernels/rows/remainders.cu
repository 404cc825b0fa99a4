// The remainders of int8 rows (kernels/rows/op.h). A warp makes a run; a lane has kEach values of each of its steps.
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/rows/bodies.h"
#include "kernels/rows/cuda_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kEach = 8, kStep = 32 * kEach, kSteps = static_cast<int>(kRemainderRun) / kStep;
static_assert(kSteps * kStep == kRemainderRun);
constexpr int kCodeWords = static_cast<int>(kRemainderRun) * kMaxCodeBits / 32;  // of a run

// Where the values of this warp's run are.
struct Run {
  uint16_t* exact;  // of the run's first value, as the next one
  const uint32_t* values;
  const __half* scales;  // of the plane's first row
  uint32_t* start;
  uint32_t* pieces;
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
    start = static_cast<uint32_t*>(const_cast<void*>(remainders)) + index;
    pieces = static_cast<uint32_t*>(const_cast<void*>(remainders)) + 2 * runs;
  }

  __device__ uint32_t place(int step) const { return static_cast<uint32_t>(step) * kStep + lane * kEach; }
  __device__ __half scale(int step) const { return scales[(first + place(step)) / head_dim]; }  // of this lane's row
  __device__ uint2 eight_values(int step) const {
    return *reinterpret_cast<const uint2*>(reinterpret_cast<const char*>(values) + place(step));
  }
  __device__ uint4& eight_exact(int step) const { return *reinterpret_cast<uint4*>(exact + place(step)); }
};

__device__ uint32_t half_of(const uint4& halves, int i) {
  const uint32_t word = i < 2 ? halves.x : i < 4 ? halves.y : i < 6 ? halves.z : halves.w;
  return i % 2 == 0 ? word & 0xffff : word >> 16;
}

// 0xff where the byte's highest bit is set, else 0.
__device__ uint32_t spread(uint32_t bytes) {  // __byte_perm() does not repeat signs
  uint32_t spread;
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(spread) : "r"(bytes));
  return spread;
}
// The low `count` bits.
__device__ uint32_t low_bits(uint32_t word, uint32_t count) {
  uint32_t low;
  asm("szext.clamp.u32 %0, %1, %2;" : "=r"(low) : "r"(word), "r"(count));
  return low;
}
// Bit i for byte i of four, each 0 or 1.
__device__ uint32_t one_bit_each(uint32_t bytes) { return bytes * 0x10204080u >> 28; }

// What eight stored values of a row say of the exact ones: the least magnitude of each, in the high half of a word, and
// how long its code is. A q of 0, as which all count of a row without a normal scale, has one bit and no base.
struct Known {
  uint2 q, zeros;  // zeros: 0xff for a q of 0
  uint32_t base[kEach], bits[kEach];

  __device__ Known(const uint2& values, __half scale) {
    const uint32_t exponent = __half_as_ushort(scale) & 0x7c00;
    q = exponent != 0 && exponent != 0x7c00 ? values : uint2{0, 0};
    const uint2 sizes = {size_of(q.x), size_of(q.y)};
    zeros = {~spread(sizes.x + 0x7f7f7f7f), ~spread(sizes.y + 0x7f7f7f7f)};
    const float step = __half2float(scale), half = 0.5f * step;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      // 2^23 + |q| is the float whose low bits are |q|; all operations are exact.
      const uint32_t size = __byte_perm(i < 4 ? sizes.x : sizes.y, 0x4b000000u, 0x7440u | static_cast<unsigned>(i % 4));
      const float magnitude = __uint_as_float(size) - 8388608.0f;
      base[i] = __float_as_uint(__fmaf_rn(magnitude, step, -half)) & 0xffff0000;
      const uint32_t next = __float_as_uint(__fmaf_rn(magnitude, step, half));
      bits[i] = size == 0x4b000000u ? 1 : 16 - static_cast<uint32_t>(__clz(static_cast<int>(next - base[i])));
    }
  }
  __device__ static uint32_t size_of(uint32_t q) {
    const uint32_t negative = spread(q);
    return (q ^ negative) + (negative & 0x01010101);  // at most 127, so that nothing is carried
  }
  __device__ bool zero(int i) const { return (i < 4 ? zeros.x : zeros.y) >> (8 * (i % 4)) & 1; }
  __device__ uint32_t all_bits() const {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += bits[i];
    return sum;
  }

  // Values i and i + 1, i even, in the halves of a word; 0 for a q of 0.
  __device__ uint32_t pair(int i, const uint32_t (&codes)[kEach]) const {
    const unsigned byte = static_cast<unsigned>(i % 4), four = byte | byte << 4 | (byte + 1) << 8 | (byte + 1) << 12;
    const uint32_t magnitudes = __byte_perm(base[i], base[i + 1], 0x7632) + __byte_perm(codes[i], codes[i + 1], 0x5410);
    const uint32_t signs = __byte_perm(i < 4 ? q.x : q.y, 0, four) & 0x80008000;
    return (magnitudes & ~__byte_perm(i < 4 ? zeros.x : zeros.y, 0, four)) | signs;
  }
  // Bit i: value i is in the list.
  __device__ uint32_t listed(const uint32_t (&codes)[kEach]) const {
    const auto four = [&](int i, uint32_t zero) {
      const uint32_t low = __byte_perm(codes[i], codes[i + 1], 0x0040),
                     high = __byte_perm(codes[i + 2], codes[i + 3], 0x0040);
      return one_bit_each(__byte_perm(low, high, 0x5410) & zero & 0x01010101);
    };
    return four(0, zeros.x) | four(4, zeros.y) << 4;
  }
};

// The sum over lanes below this one; *all: over all lanes.
__device__ uint32_t sum_below(uint32_t count, uint32_t lane, uint32_t* all) {
  uint32_t sum = count;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= static_cast<uint32_t>(distance)) sum += other;
  }
  *all = __shfl_sync(kAllLanes, sum, 31);
  return sum - count;
}

// Adds the low `count` bits of `bits` to words from bit `at` on. Other lanes add to the same words.
__device__ void add_bits(uint32_t* words, uint32_t at, uint64_t bits, uint32_t count) {
  if (count == 0) return;
  uint32_t* const to = words + at / 32;
  const uint32_t shift = at % 32;
  atomicOr(to, static_cast<uint32_t>(bits << shift));
  if (shift + count > 32) atomicOr(to + 1, static_cast<uint32_t>(bits >> (32 - shift)));
  if (shift + count > 64) atomicOr(to + 2, static_cast<uint32_t>(bits >> (64 - shift)));
}

__global__ void __launch_bounds__(kThreads)
    encode_kernel(const __grid_constant__ EncodeRemaindersParams p, uint32_t room) {
  __shared__ uint32_t all_codes[kWarps][kCodeWords];
  const Run run(p.exact, p.rows, p.remainders, p.kv_heads, p.head_dim, blockIdx.x * kWarps + threadIdx.x / 32);
  if (!run.exists) return;
  uint32_t* const codes = all_codes[threadIdx.x / 32];
  for (uint32_t i = run.lane; i < kCodeWords; i += 32) codes[i] = 0;
  __syncwarp();
  uint32_t in_list = 0;  // of this lane's values of all steps
  uint32_t at = 0, listed = 0, places[kSteps];
  bool fits = true;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint4 exact = run.eight_exact(step);
    const uint2 values = run.eight_values(step);
    const Known known(values, run.scale(step));
    uint64_t bits = 0;
    uint32_t count = 0, codes_of[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t value = half_of(exact, i), negative = (i < 4 ? values.x : values.y) >> (8 * (i % 4) + 7) & 1;
      uint32_t code = value != 0;
      if (!known.zero(i)) {
        code = (value & 0x7fff) - (known.base[i] >> 16);
        fits = fits && code >> known.bits[i] == 0 && value >> 15 == negative;
        code = low_bits(code, known.bits[i]);
      }
      codes_of[i] = code;
      bits |= static_cast<uint64_t>(code) << count;
      count += known.bits[i];
    }
    const uint32_t mine = known.listed(codes_of);
    uint32_t all = 0;
    add_bits(codes, at + sum_below(count, run.lane, &all), bits, count);
    at += all;
    places[step] = listed + sum_below(static_cast<uint32_t>(__popc(mine)), run.lane, &all);
    listed += all;
    in_list |= mine << (kEach * step);
  }
  __syncwarp();  // the lanes have added bits to each other's words
  const uint32_t code_words = (at + 31) / 32, words = code_words + (listed + 1) / 2;
  if (!__all_sync(kAllLanes, fits) && run.lane == 0) atomicOr(p.words, kNotTheseRows);
  uint32_t start = 0;
  if (run.lane == 0) start = atomicAdd(p.words, words);
  start = __shfl_sync(kAllLanes, start, 0);
  if (start + words > room) return;
  if (run.lane == 0) *run.start = start;
  for (uint32_t i = run.lane; i < code_words; i += 32) run.pieces[start + i] = codes[i];
  auto* const list = reinterpret_cast<uint16_t*>(run.pieces + start + code_words);
  if (run.lane == 0 && listed % 2 != 0) list[listed] = 0;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint4 exact = run.eight_exact(step);
    uint32_t next = places[step];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if ((in_list >> (kEach * step + i) & 1) != 0) list[next++] = static_cast<uint16_t>(half_of(exact, i));
    }
  }
}

__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ DecodeRemaindersParams p) {
  const DecodeRemaindersParams::Segment& segment = p.segments[blockIdx.y];
  const Run run(segment.exact, segment.rows, segment.remainders, p.kv_heads, p.head_dim,
                blockIdx.x * kWarps + threadIdx.x / 32);
  if (!run.exists) return;
  uint2 values[kSteps];
  __half scales[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {  // all in flight before the first is used
    values[step] = run.eight_values(step);
    scales[step] = run.scale(step);
  }
  const uint32_t* const codes = run.pieces + *run.start;
  uint32_t at = 0, listed = 0, in_list = 0, places[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const Known known(values[step], scales[step]);
    uint32_t all = 0;
    const uint32_t count = known.all_bits();
    const uint32_t from = at + sum_below(count, run.lane, &all);
    at += all;
    // Words behind the last bit belong to the run's list or to another run, or are the segment's last: not read.
    const uint32_t word = from / 32, last = (from + count - 1) / 32;
    const uint32_t a = codes[word], b = codes[min(word + 1, last)], c = codes[last];
    uint32_t low = __funnelshift_r(a, b, from), high = __funnelshift_r(b, c, from);
    uint32_t each[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      each[i] = low_bits(low, known.bits[i]);
      low = __funnelshift_r(low, high, known.bits[i]);
      high >>= known.bits[i];
    }
    run.eight_exact(step) = {known.pair(0, each), known.pair(2, each), known.pair(4, each), known.pair(6, each)};
    const uint32_t mine = known.listed(each);
    places[step] = listed + sum_below(static_cast<uint32_t>(__popc(mine)), run.lane, &all);
    listed += all;
    in_list |= mine << (kEach * step);
  }
  const auto* const list = reinterpret_cast<const uint16_t*>(codes + (at + 31) / 32);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {  // over this lane's own values
    uint32_t next = places[step];
    for (uint32_t mine = in_list >> (kEach * step) & 0xff; mine != 0; mine &= mine - 1) {
      run.exact[run.place(step) + static_cast<uint32_t>(__ffs(static_cast<int>(mine))) - 1] = list[next++];
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
  const auto room = static_cast<uint32_t>(remainder_room(static_cast<uint64_t>(values)));
  launch_on(cuda_stream(stream), "encode_remainders", Grid{blocks_of(values), 1, kThreads}, encode_kernel, params,
            room);
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
