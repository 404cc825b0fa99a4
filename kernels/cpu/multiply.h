// The micro-kernel of attention's two products, for *_isa.cc sources with simd.h. An element is one chain of fused
// multiply-adds in ascending order of the steps: its bits do not depend on the rows and columns computed beside it.
// Pure; everything is in the set's own namespace.
#pragma once

#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int kMaxTileRows = 6;  // of the micro-kernel
#if defined(__AVX512F__)
constexpr int kMaxTileVectors = 4;
#else
constexpr int kMaxTileVectors = 2;
#endif

// Broadcasts the 32 bits at p to every lane: a float, or a pair of bf16.
HEADRACE_SIMD vf repeat(const float* p) {
  uint32_t bits;
  memcpy(&bits, p, sizeof bits);
  return float_of(bits + vu{});
}

// Forces the compiler to keep v in a register instead of rereading it from memory.
HEADRACE_SIMD void pin(vf& v) {
#if defined(__x86_64__)
  __asm__("" : "+v"(v));
#else
  (void)v;
#endif
}

// Decode is bound by memory, and a tile is too short for the hardware to detect a stream. So while one tile is read,
// the same place in the next tile is prefetched into the second-level cache (the first has too few requests in flight;
// prefetching into it is slower than none).
constexpr int64_t kCacheLine = 64;
HEADRACE_SIMD void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

enum class Multiply { kFloats, kPairs };  // kPairs: elements of a and b are pairs of bf16, two products at once

template <Multiply kHow>
HEADRACE_SIMD vf multiply_add(vf a, vf b, vf c) {
#if defined(__AVX512BF16__)
  if constexpr (kHow == Multiply::kPairs) {
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
  }
#endif
  return fma(a, b, c);
}

// c[r][columns] = c[r][columns] * keep[r] + sum over the steps of a[r][step] * b[step][columns]; without keep, c is
// overwritten.
struct Operands {
  const float* a[kMaxTileRows];
  float* c[kMaxTileRows];
  float keep[kMaxTileRows];
  const void* b;
  int64_t b_stride, steps;  // elements
  int64_t ahead = 0;        // elements from b to the next data, to prefetch; 0: none
};

template <Multiply kHow, bool kKeep, typename B, int kRows, int kVectors>
void multiply(const Operands& x, int64_t column) {
  vf acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      acc[r][j] = kKeep ? load(x.c[r] + column + j * kLanes) * repeat(&x.keep[r]) : zero();
    }
  }
  const B* b = static_cast<const B*>(x.b) + column;
  for (int64_t step = 0; step < x.steps; ++step, b += x.b_stride) {
    if constexpr (kKeep && kHow == Multiply::kFloats) {  // values, possibly read in place
#pragma GCC unroll 8
      for (int64_t line = 0; line < int64_t(kVectors * kLanes * sizeof(B)); line += kCacheLine) {
        prefetch(reinterpret_cast<const char*>(b + x.ahead) + line);
      }
    }
    vf wide[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      wide[j] = load(b + j * kLanes);
      pin(wide[j]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const vf a = repeat(x.a[r] + step);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) acc[r][j] = multiply_add<kHow>(a, wide[j], acc[r][j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) store(x.c[r] + column + j * kLanes, acc[r][j]);
  }
}

template <Multiply kHow, bool kKeep, typename B, int kRows>
void multiply_rows(const Operands& x, int64_t columns) {
  int64_t column = 0;
  for (; column + kMaxTileVectors * kLanes <= columns; column += kMaxTileVectors * kLanes) {
    multiply<kHow, kKeep, B, kRows, kMaxTileVectors>(x, column);
  }
  if constexpr (kMaxTileVectors == 4) {
    if (column + 2 * kLanes <= columns) {
      multiply<kHow, kKeep, B, kRows, 2>(x, column);
      column += 2 * kLanes;
    }
  }
  if (column < columns) multiply<kHow, kKeep, B, kRows, 1>(x, column);
}

// columns: a multiple of kLanes.
template <Multiply kHow, bool kKeep, typename B>
void multiply_any(const Operands& x, int64_t rows, int64_t columns) {
  switch (rows) {
    case 1:
      return multiply_rows<kHow, kKeep, B, 1>(x, columns);
    case 2:
      return multiply_rows<kHow, kKeep, B, 2>(x, columns);
    case 3:
      return multiply_rows<kHow, kKeep, B, 3>(x, columns);
    case 4:
      return multiply_rows<kHow, kKeep, B, 4>(x, columns);
    case 5:
      return multiply_rows<kHow, kKeep, B, 5>(x, columns);
    default:
      return multiply_rows<kHow, kKeep, B, 6>(x, columns);
  }
}

}  // namespace

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
