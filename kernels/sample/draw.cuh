// Shared by sampling and the ranking of a draft's candidates: clean logits, keys that order scores and ids as one
// integer, the exponential and the sampler's noise. The arithmetic is that of the CPU body (kernels/cpu/simd.h,
// kernels/sample/cpu_isa.cc), operation by operation: for sources compiled without contraction. Device code.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/warp.cuh"
#include "kernels/sample/philox.h"

namespace headrace::kernels::cuda {

constexpr int kTokensAtOnce = 4;  // per Philox counter

__device__ inline float clean(float logit) { return fminf(logit == logit ? logit : -INFINITY, FLT_MAX); }

// Four logits of a row from id on; -inf beyond its end. Aligned: one access for all four.
__device__ inline void load_four_raw(const float* row, int64_t count, bool aligned, int64_t id,
                                     float (&logits)[kTokensAtOnce]) {
  if (aligned && id + kTokensAtOnce <= count) {
    const float4 raw = *reinterpret_cast<const float4*>(row + id);
    logits[0] = raw.x;
    logits[1] = raw.y;
    logits[2] = raw.z;
    logits[3] = raw.w;
  } else {
#pragma unroll
    for (int i = 0; i < kTokensAtOnce; ++i) logits[i] = id + i < count ? row[id + i] : -INFINITY;
  }
}
// The same, clean.
__device__ inline void load_four(const float* row, int64_t count, bool aligned, int64_t id,
                                 float (&logits)[kTokensAtOnce]) {
  load_four_raw(row, count, aligned, id, logits);
#pragma unroll
  for (int i = 0; i < kTokensAtOnce; ++i) logits[i] = clean(logits[i]);
}

// Increases with the score and, for equal scores, with a lower id; never 0. Not for NaN.
__device__ inline uint64_t key_of(float score, int64_t id) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // no -0
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (~static_cast<uint32_t>(id));
}
__device__ inline int32_t id_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }
__device__ inline float score_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(ordered >> 31 != 0 ? ordered & 0x7fffffffu : ~ordered);
}

__device__ inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Reduces all threads' values; every thread gets the result.
template <int kBlockThreads>
__device__ inline uint64_t block_largest(uint64_t value) {
  __shared__ uint64_t of_warp[kBlockThreads / 32];
  value = warp_reduce(value, larger);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kBlockThreads / 32; ++warp) value = larger(value, of_warp[warp]);
  __syncthreads();
  return value;
}

// simd.h's exp.
__device__ inline float exponential_of(float x) {
  x = x < -105.0f ? -105.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * 0x1.715476p0f + 0x1.8p23f;
  const float n = shifted - 0x1.8p23f;
  float r = fmaf(n, -0x1.63p-1f, x);
  r = fmaf(n, 0x1.bd0106p-13f, r);
  float e = 1.0f / 5040;
  e = fmaf(e, r, 1.0f / 720);
  e = fmaf(e, r, 1.0f / 120);
  e = fmaf(e, r, 1.0f / 24);
  e = fmaf(e, r, 1.0f / 6);
  e = fmaf(e, r, 0.5f);
  e = fmaf(e, r * r, r) + 1.0f;
  const int32_t exponent = static_cast<int32_t>(__float_as_uint(shifted) << 10) >> 10;
  const int32_t half = exponent >> 1;
  return e * __int_as_float((half + 127) << 23) * __int_as_float((exponent - half + 127) << 23);
}

__device__ inline float twice_atanh(float s) {
  const float z = s * s;
  float a = 2.0f / 11;
  a = fmaf(a, z, 2.0f / 9);
  a = fmaf(a, z, 2.0f / 7);
  a = fmaf(a, z, 2.0f / 5);
  a = fmaf(a, z, 2.0f / 3);
  return fmaf(a * z, s, s + s);
}
__device__ inline void split(float x, float* exponent, float* fraction) {
  const int32_t bits = __float_as_int(x) - 0x3f3504f3;  // sqrt(1/2)
  *exponent = static_cast<float>(bits >> 23);
  *fraction = __int_as_float((bits & 0x7fffff) + 0x3f3504f3);
}
__device__ inline float gumbel(uint32_t word) {
  const float u = fminf((static_cast<float>(word) + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
  float exponent, m;
  split(1.0f - u, &exponent, &m);
  const bool small = u < 0.25f;
  const float over = small ? u : 1.0f - m, under = small ? 2.0f - u : 1.0f + m;
  const float exponential = fmaf(small ? 0.0f : exponent, -0x1.62e43p-1f, twice_atanh(over / under));
  split(exponential, &exponent, &m);
  return fmaf(exponent, -0x1.62e43p-1f, twice_atanh((1.0f - m) / (1.0f + m)));
}

// The words of the counter, shared by four neighbouring tokens.
__device__ inline void philox_words(uint64_t seed, int64_t position, int64_t id, uint32_t (&words)[4]) {
  words[0] = static_cast<uint32_t>(id / 4);
  words[1] = 0;
  words[2] = static_cast<uint32_t>(position);
  words[3] = static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32);
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint32_t low0 = kPhiloxMultiplier0 * words[0], high0 = __umulhi(kPhiloxMultiplier0, words[0]);
    const uint32_t low1 = kPhiloxMultiplier1 * words[2], high1 = __umulhi(kPhiloxMultiplier1, words[2]);
    words[0] = high1 ^ words[1] ^ key0;
    words[1] = low1;
    words[2] = high0 ^ words[3] ^ key1;
    words[3] = low0;
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
}

}  // namespace headrace::kernels::cuda
