// From a packed part in memory to operand A of the tensor cores, lane by lane (kernels/weights/cuda_layout.h). The bits
// of a weight become f32 without the integer units' help: as a half's lowest bits they are a subnormal,
// q 2^-24 (or q 2^-20, four places up), which one instruction widens; the scale has the power of two in it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/instructions.cuh"
#include "kernels/product/packed.h"
#include "kernels/weights/cuda_layout.h"

namespace headrace::kernels::cuda {

// ---- Loads ----------------------------------------------------------------------------------------------------------

// Weights are read once a step of the model: they must not push x and sums out of the caches. Where several blocks of
// rows read them, they are kept.
__device__ inline uint64_t weight_policy(bool read_once) {
  uint64_t policy;
  if (read_once) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}
__device__ inline uint4 load_four(const char* p, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}
__device__ inline uint2 load_two(const char* p, uint64_t policy) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.b32 {%0,%1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p), "l"(policy));
  return v;
}
__device__ inline uint32_t load_word(const char* p, uint64_t policy) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.b32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(policy));
  return v;
}

__device__ inline uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// What a lane holds of one tile's step of 64 columns.
template <int kBits>
struct RawStep {
  static constexpr int kMain = kBits == 16 ? 4 : kBits == 8 ? 2 : 1;
  uint4 main[kMain];
  uint2 extra;
};

// Where a lane reads a tile's steps and records.
template <int kBits>
struct TileSource {
  const char *main, *extra, *scales;
  const char* high;  // of a plain part: row g + 8, `main` being row g
  int first_col, cols;

  __device__ TileSource(const PackedPart& part, const PackedKind& kind, const TilePlanes& planes, int tile, int k,
                        int lane) {
    if constexpr (kBits == 16) {
      const int row = tile * kTileRows + lane / 4, last = part.rows - 1;
      first_col = lane % 4 * 8;
      cols = k;
      main = static_cast<const char*>(part.data) + static_cast<int64_t>(min(row, last)) * k * 2;
      high = static_cast<const char*>(part.data) + static_cast<int64_t>(min(row + 8, last)) * k * 2;
    } else {
      const char* const base = static_cast<const char*>(part.data) + tile * planes.bytes;
      main = base + lane * 16;
      extra = base + planes.extra + lane * (kBits == 5 ? 4 : 8);
      scales = base + planes.scales;
    }
  }

  __device__ void load(int step, uint64_t policy, RawStep<kBits>& raw) const {
    if constexpr (kBits == 16) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = step * kStepCols + 32 * half + first_col;
        const bool inside = col < cols;
        raw.main[2 * half] = inside ? load_four(main + col * 2, policy) : make_uint4(0, 0, 0, 0);
        raw.main[2 * half + 1] = inside ? load_four(high + col * 2, policy) : make_uint4(0, 0, 0, 0);
      }
    } else {
      const int64_t at = step;
#pragma unroll
      for (int i = 0; i < RawStep<kBits>::kMain; ++i)
        raw.main[i] = load_four(main + at * main_step_bytes(kBits) + i * 512, policy);
      if constexpr (kBits == 5) raw.extra.x = load_word(extra + at * extra_step_bytes(kBits), policy);
      if constexpr (kBits == 6) raw.extra = load_two(extra + at * extra_step_bytes(kBits), policy);
    }
  }
};

// A lane's words of a record: scales of two groups and what follows them.
struct RawScales {
  uint2 first, second;
};
__device__ inline RawScales load_scales(const char* record, ScaleKind kind, int lane, uint64_t policy) {
  RawScales raw{};
  raw.first = load_two(record + lane * 8, policy);
  const char* const after = record + kRecordWords * 4;
  if (kind == ScaleKind::kHalfMin) raw.second = load_two(after + lane * 8, policy);
  if (kind == ScaleKind::kSixBits) raw.second = load_two(after + lane / 4 * 8, policy);
  if (kind == ScaleKind::kSigned) raw.second.x = load_word(after + lane / 4 * 4, policy);
  return raw;
}

// ---- From bits to fragments -----------------------------------------------------------------------------------------

__device__ inline float2 halves_of(uint32_t word) { return __half22float2(*reinterpret_cast<const __half2*>(&word)); }
template <int kByte>
__device__ inline float byte_of(uint32_t word) {  // 2^23 + byte, made of the bits, less 2^23
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650 | kByte)) - 0x1p23f;
}

// Of a row pair and a group in shared memory: another order of the pairs for each group, so that a warp's stores and
// its loads spread over the banks.
__device__ inline int scale_slot(int group, int g) { return group * 8 + (g ^ (group & 6)); }

// The scales of a record in f32, by scale_slot(): a and b of row g, a and b of row g + 8; of kSigned, a of rows g and
// g + 8 for the first 16 columns of the group, then for the second.
template <int kBits>
__device__ inline void stage_scales(const RawScales& raw, const PackedKind& kind, int lane, float4* to) {
  constexpr float kLow = 0x1p24f, kHigh = kBits == 8 ? 0x1p24f : 0x1p20f;
  const int g = lane / 4, t = lane % 4;
  const auto zero = static_cast<float>(-kind.zero);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const uint32_t word = e == 0 ? raw.first.x : raw.first.y;
    float4 v;
    if (kBits == 6) {
      const float2 d = halves_of(raw.second.x);
      const uint32_t s = word ^ 0x80808080u;  // s + 128
      v = make_float4((byte_of<0>(s) - 128.0f) * d.x * kLow, (byte_of<2>(s) - 128.0f) * d.y * kHigh,
                      (byte_of<1>(s) - 128.0f) * d.x * kLow, (byte_of<3>(s) - 128.0f) * d.y * kHigh);
    } else if (kBits != 8 && kind.scales == ScaleKind::kSixBits) {
      const float2 low = halves_of(raw.second.x), high = halves_of(raw.second.y);
      v = make_float4(byte_of<0>(word) * low.x * kLow, -(byte_of<1>(word) * low.y), byte_of<2>(word) * high.x * kHigh,
                      -(byte_of<3>(word) * high.y));
    } else {
      const float2 d = halves_of(word);
      v = make_float4(d.x * kLow, d.x * zero, d.y * kHigh, d.y * zero);
      if (kBits != 8 && kind.scales == ScaleKind::kHalfMin) {
        const float2 m = halves_of(e == 0 ? raw.second.x : raw.second.y);
        v.y = m.x;
        v.w = m.y;
      }
    }
    to[scale_slot(2 * t + e, g)] = v;
  }
}

template <int kBits>
__device__ inline float4 load_scale(const float4* scales, int group, int lane) {
  const float4* const at = scales + scale_slot(group, lane / 4);
  if constexpr (kBits != 6) return *at;
  const float2 a = reinterpret_cast<const float2*>(at)[lane % 4 / 2];
  return make_float4(a.x, a.x * (-32.0f * 0x1p-24f), a.y, a.y * (-32.0f * 0x1p-20f));
}

// fma(q, a, b) of two weights, rounded to bf16: columns b = 0 and 1.
__device__ inline uint32_t weights_of(uint32_t pair, float a, float b) {
  const float2 q = halves_of(pair);
  return pack(fmaf(q.x, a, b), fmaf(q.y, a, b), __nv_bfloat16{});
}

// Operand A of the two steps of the tensor cores over one half (32 columns) of a step.
template <int kBits>
__device__ inline void fragments_of(const RawStep<kBits>& raw, int half, const float4& scale, uint32_t (&a)[2][4]) {
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int hi = 0; hi < 2; ++hi) {
        uint32_t& to = a[u][2 * s + hi];
        if constexpr (kBits == 16) {
          to = word_of(raw.main[2 * half + hi], 2 * u + s);
        } else {
          const uint32_t main =
              kBits == 8 ? word_of(raw.main[kBits == 8 ? half : 0], 2 * u + hi) : word_of(raw.main[0], 2 * half + u);
          const uint32_t extra = kBits == 6 && half == 1 ? raw.extra.y : raw.extra.x;
          to = weights_of(pair_of<kBits>(main, extra, half, u, s, hi), hi == 0 ? scale.x : scale.z,
                          hi == 0 ? scale.y : scale.w);
        }
      }
    }
  }
}

}  // namespace headrace::kernels::cuda
