// Dot products of int8 with int32 sums, for *_isa.cc sources: with VNNI of four bytes at a time, one of the operands
// unsigned; else of pairs of 16-bit numbers, which no sum saturates (vpmaddubsw would). Sums wrap, so they are exact
// wherever the result fits int32. Pure; everything is in the set's own namespace.
#pragma once

#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

typedef int16_t vs __attribute__((vector_size(kLanes * 4)));

constexpr int kPanel = 16;  // rows
constexpr int kPanelVectors = kPanel / kLanes;

HEADRACE_SIMD vi load_ints(const void* p) {
  vi v;
  memcpy(&v, p, sizeof v);
  return v;
}
HEADRACE_SIMD void store_ints(void* p, vi v) { memcpy(p, &v, sizeof v); }
HEADRACE_SIMD vi repeat_int(const void* p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return vi{} + word;
}

#if defined(__AVX512VNNI__)

// x is stored with 128 added, so a sum begins at -128 times the sum of the weights.
struct Int8Dot {
  struct Weights {
    vi bytes;
  };
  static constexpr int kXBytes = 1;  // of a value of x
  HEADRACE_SIMD Weights read(const int8_t* w) { return {load_ints(w)}; }
  HEADRACE_SIMD void prepare(const int8_t* x, int64_t padded, int8_t* to) {
    for (int64_t i = 0; i < padded; i += 64) store_ints(to + i, load_ints(x + i) ^ static_cast<int32_t>(0x80808080));
  }
  // to: of the row's first value; i: the number of the four columns.
  struct X {
    vi four;
  };
  HEADRACE_SIMD X repeat(const int8_t* x, int64_t, int64_t i) { return {repeat_int(x + 4 * i)}; }
  HEADRACE_SIMD X ones() { return {vi{} + 0x01010101}; }
  HEADRACE_SIMD vi begin(const int8_t* sums) { return load_ints(sums) * -128; }
  HEADRACE_SIMD vi add(vi sum, const X& x, const Weights& w) {
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x.four, (__m512i)w.bytes);
  }
};

#else

HEADRACE_SIMD vi multiply_pairs(vi a, vi b) {
#if defined(__AVX512F__)
  return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const vi low = ((a << 16) >> 16) * ((b << 16) >> 16);
  return low + (a >> 16) * (b >> 16);
#endif
}

// Of each four bytes the first and third, and the second and fourth, widened.
struct Int8Dot {
  struct Weights {
    vi even, odd;
  };
  using X = Weights;
  static constexpr int kXBytes = 2;
  HEADRACE_SIMD Weights read(const int8_t* w) {
    const vs both = reinterpret_cast<vs>(load_ints(w));
    return {reinterpret_cast<vi>((both << 8) >> 8), reinterpret_cast<vi>(both >> 8)};
  }
  HEADRACE_SIMD void prepare(const int8_t* x, int64_t padded, int8_t* to) {
    for (int64_t i = 0; i < padded; i += kLanes * 4) {
      const Weights wide = read(x + i);
      store_ints(to + i, wide.even);
      store_ints(to + padded + i, wide.odd);
    }
  }
  HEADRACE_SIMD X repeat(const int8_t* x, int64_t padded, int64_t i) {
    return {repeat_int(x + 4 * i), repeat_int(x + padded + 4 * i)};
  }
  HEADRACE_SIMD X ones() { return {vi{} + 0x00010001, vi{} + 0x00010001}; }
  HEADRACE_SIMD vi begin(const int8_t*) { return vi{}; }
  HEADRACE_SIMD vi add(vi sum, const X& x, const Weights& w) {
    return sum + multiply_pairs(x.even, w.even) + multiply_pairs(x.odd, w.odd);
  }
};

#endif

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
