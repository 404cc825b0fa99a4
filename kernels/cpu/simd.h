// Vectors of floats for *_isa.cc sources (isa.h), one width per instruction set: the same source gives 4, 8 or 16
// lanes. Loads widen bf16 and f16 to fp32, stores round to nearest even. `count` forms access only the first count
// elements (1 <= count <= kLanes) and read zero beyond. Sums over lanes have one fixed order. Pure; everything is in
// the set's own namespace. Operators (+ - * / < and so on, lane by lane) are the compiler's.
#pragma once

#include <cstdint>
#include <cstring>

#include "cache/base.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef HEADRACE_ISA_NAMESPACE
#error "only for sources listed under isa_sources in kernels/CMakeLists.txt"
#endif

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));

#define HEADRACE_SIMD [[maybe_unused]] static inline __attribute__((always_inline))

HEADRACE_SIMD vf zero() { return vf{}; }
HEADRACE_SIMD vf splat(float value) { return vf{} + value; }
HEADRACE_SIMD vu bits_of(vf v) { return reinterpret_cast<vu>(v); }
HEADRACE_SIMD vf float_of(vu v) { return reinterpret_cast<vf>(v); }

// mask: lanes of all ones or all zeros, as comparisons return.
HEADRACE_SIMD vf select(vi mask, vf yes, vf no) { return mask ? yes : no; }
HEADRACE_SIMD vu select(vi mask, vu yes, vu no) { return mask ? yes : no; }
// Keeps a NaN in `a`: b is taken only if the comparison is true.
HEADRACE_SIMD vf max(vf a, vf b) { return select(a < b, b, a); }
HEADRACE_SIMD vf min(vf a, vf b) { return select(b < a, b, a); }

// a * b + c: rounded once where the set has FMA, twice in the baseline.
HEADRACE_SIMD vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// ---- Loads ----------------------------------------------------------------------------------------------------------

HEADRACE_SIMD vf load(const float* p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
HEADRACE_SIMD vh load_halves(const void* p) {
  vh v;
  memcpy(&v, p, sizeof v);
  return v;
}
HEADRACE_SIMD vf widen_bf16(vh h) {
#if defined(__AVX512F__)
  return float_of((vu)_mm512_cvtepu16_epi32((__m256i)h) << 16);
#elif defined(__AVX2__)
  return float_of((vu)_mm256_cvtepu16_epi32((__m128i)h) << 16);
#elif defined(__SSE2__)
  int64_t low;
  memcpy(&low, &h, sizeof low);
  return (vf)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_cvtsi64_si128(low));
#else
  return float_of(__builtin_convertvector(h, vu) << 16);
#endif
}
HEADRACE_SIMD vf widen_f16(vh h) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__AVX2__)
  return (vf)_mm256_cvtph_ps((__m128i)h);
#else
  const vu wide = __builtin_convertvector(h, vu);
  const vu magnitude = (wide & 0x7fff) << 13;
  vu bits = bits_of(float_of(magnitude) * 0x1p112f);  // changes the exponent's bias from 15 to 127
  bits |= select(vi(magnitude >= (0x7c00u << 13)), vu{} + 0x7f800000u, vu{});
  return float_of(bits | (wide & 0x8000) << 16);
#endif
}
HEADRACE_SIMD vf load(const bf16* p) { return widen_bf16(load_halves(p)); }
HEADRACE_SIMD vf load(const f16* p) { return widen_f16(load_halves(p)); }

HEADRACE_SIMD vf load(const float* p, int64_t count) {
  vf v = {};
  memcpy(&v, p, size_t(count) * 4);
  return v;
}
HEADRACE_SIMD vh load_halves(const void* p, int64_t count) {
  vh v = {};
  memcpy(&v, p, size_t(count) * 2);
  return v;
}
HEADRACE_SIMD vf load(const bf16* p, int64_t count) { return widen_bf16(load_halves(p, count)); }
HEADRACE_SIMD vf load(const f16* p, int64_t count) { return widen_f16(load_halves(p, count)); }

// ---- Stores ---------------------------------------------------------------------------------------------------------

HEADRACE_SIMD vh low_halves(vu v) {
#if defined(__AVX512F__)
  return (vh)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)(v & 0xffff), (__m256i)(v & 0xffff));
  return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(v, vh);
#endif
}
HEADRACE_SIMD vh narrow_bf16(vf v) {
  const vu bits = bits_of(v);
  const vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const vu quiet_nan = (bits >> 16) | 0x40;
  return low_halves(select(vi(v != v), quiet_nan, rounded));
}
HEADRACE_SIMD vh narrow_f16(vf v) {
#if defined(__AVX512F__)
  return (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  vh h;
  for (int i = 0; i < kLanes; ++i) h[i] = f32_to_f16(v[i]).bits;
  return h;
#endif
}
HEADRACE_SIMD void store(float* p, vf v) { memcpy(p, &v, sizeof v); }
HEADRACE_SIMD void store(float* p, vf v, int64_t count) { memcpy(p, &v, size_t(count) * 4); }
HEADRACE_SIMD void store_halves(void* p, vh v) { memcpy(p, &v, sizeof v); }
HEADRACE_SIMD void store(bf16* p, vf v) { store_halves(p, narrow_bf16(v)); }
HEADRACE_SIMD void store(f16* p, vf v) { store_halves(p, narrow_f16(v)); }
HEADRACE_SIMD void store(bf16* p, vf v, int64_t count) {
  const vh h = narrow_bf16(v);
  memcpy(p, &h, size_t(count) * 2);
}
HEADRACE_SIMD void store(f16* p, vf v, int64_t count) {
  const vh h = narrow_f16(v);
  memcpy(p, &h, size_t(count) * 2);
}

// Whole vectors are the common case.
template <typename T>
HEADRACE_SIMD vf load_some(const T* p, int64_t count) {
  return count == kLanes ? load(p) : load(p, count);
}
template <typename T>
HEADRACE_SIMD void store_some(T* p, vf v, int64_t count) {
  if (count == kLanes) {
    store(p, v);
  } else {
    store(p, v, count);
  }
}

// ---- Over lanes -----------------------------------------------------------------------------------------------------

// Adds halves until one lane is left: ((l0 + l8) + (l4 + l12)) + … for 16 lanes.
HEADRACE_SIMD float sum(vf v) {
  float lanes[kLanes];
  memcpy(lanes, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
HEADRACE_SIMD float largest(vf v) {
  float lanes[kLanes];
  memcpy(lanes, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] < lanes[i + width] ? lanes[i + width] : lanes[i];
  }
  return lanes[0];
}

// The sums of four vectors, by a transposition that adds: an eighth of the shuffles of four sum() calls. Each sum has
// the order ((q0 + q2) + (q1 + q3)) of its groups of four lanes, and within a group ((l0 + l2) + (l1 + l3)), first.
typedef float v4 __attribute__((vector_size(16)));
HEADRACE_SIMD v4 sum_each(vf a, vf b, vf c, vf d) {
#if defined(__AVX512F__)
  const __m512 ma = (__m512)a, mb = (__m512)b, mc = (__m512)c, md = (__m512)d;
  const __m512 ab = _mm512_unpacklo_ps(ma, mb) + _mm512_unpackhi_ps(ma, mb);
  const __m512 cd = _mm512_unpacklo_ps(mc, md) + _mm512_unpackhi_ps(mc, md);
  const __m512 all = _mm512_shuffle_ps(ab, cd, 0x44) + _mm512_shuffle_ps(ab, cd, 0xee);
  const __m256 half = _mm512_castps512_ps256(all) + _mm512_extractf32x8_ps(all, 1);
  return (v4)(_mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
#elif defined(__AVX2__)
  const __m256 ma = (__m256)a, mb = (__m256)b, mc = (__m256)c, md = (__m256)d;
  const __m256 ab = _mm256_unpacklo_ps(ma, mb) + _mm256_unpackhi_ps(ma, mb);
  const __m256 cd = _mm256_unpacklo_ps(mc, md) + _mm256_unpackhi_ps(mc, md);
  const __m256 all = _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xee);
  return (v4)(_mm256_castps256_ps128(all) + _mm256_extractf128_ps(all, 1));
#else
  const vf ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const vf cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
#endif
}

// ---- Functions ------------------------------------------------------------------------------------------------------

// e^x, within 2 ulp (tested); 0 below about -103.97, inf above about 88.72, NaN stays NaN, exp(0) = 1 exactly.
// x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor polynomial; 2^n in two halves, so that subnormals are exact.
HEADRACE_SIMD vf exp(vf x) {
  x = select(x < -105.0f, splat(-105.0f), x);
  x = select(x > 89.0f, splat(89.0f), x);
  const float kMagic = 0x1.8p23f;  // adding it rounds to an integer in the low bits
  const vf shifted = x * 0x1.715476p0f + kMagic;
  const vf n = shifted - kMagic;
  vf r = fma(n, splat(-0x1.63p-1f), x);  // few bits, so that n * ln 2 is exact without FMA too
  r = fma(n, splat(0x1.bd0106p-13f), r);
  vf p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r * r, r) + 1.0f;
  const vi exponent = reinterpret_cast<vi>(bits_of(shifted) << 10) >> 10;
  const vi half = exponent >> 1;
  const vf scale_a = reinterpret_cast<vf>((half + 127) << 23);
  const vf scale_b = reinterpret_cast<vf>((exponent - half + 127) << 23);
  return p * scale_a * scale_b;
}

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
