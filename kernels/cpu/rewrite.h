// Rewrites rows of K and V to the layout of the micro-kernel (multiply.h), for *_isa.cc sources. Pure; everything is in
// the set's own namespace.
#pragma once

#include "kernels/cpu/multiply.h"
#include "kernels/cpu/shuffle.h"
#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

HEADRACE_SIMD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HEADRACE_SIMD int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
HEADRACE_SIMD int64_t padded(int64_t columns) { return (columns + kLanes - 1) / kLanes * kLanes; }

// Whether no element has an all-ones exponent (infinity or NaN).
template <typename Bits>
bool all_finite(const char* const* rows, int64_t count, int64_t columns, Bits exponent) {
  Bits found = 0;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      Bits element;
      memcpy(&element, rows[row] + column * int64_t(sizeof element), sizeof element);
      found |= Bits((element & exponent) == exponent);
    }
  }
  return found == 0;
}
HEADRACE_SIMD bool all_finite(const char* const* rows, int64_t count, int64_t columns, DType type) {
  if (type == DType::kF32) return all_finite<uint32_t>(rows, count, columns, 0x7f800000);
  return all_finite<uint16_t>(rows, count, columns, type == DType::kBF16 ? 0x7f80 : 0x7c00);
}

// Prefetches the rows `ahead` bytes further on, in memory order, so that the hardware detects the stream.
HEADRACE_SIMD void prefetch_rows(const char* const* rows, int64_t count, int64_t row_bytes, int64_t ahead) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t byte = 0; byte < row_bytes; byte += kCacheLine) prefetch(rows[i] + ahead + byte);
  }
}

// The square of kLanes rows from `column` on; all of it must exist.
template <typename T>
HEADRACE_SIMD void load_square(const char* const* rows, int64_t column, vf (&square)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) square[i] = load(reinterpret_cast<const T*>(rows[i]) + column);
}
// The same with only `count` rows and `wide` columns; the rest is zero.
template <typename T>
HEADRACE_SIMD void load_part(const char* const* rows, int64_t count, int64_t column, int64_t wide,
                             vf (&square)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    square[i] = i < count ? load_some(reinterpret_cast<const T*>(rows[i]) + column, wide) : zero();
  }
}

// out[column][row] = rows[row][column]; rows beyond count are zero. `ahead`: distance of the rows to prefetch, in
// bytes.
template <typename T>
void transpose_rows(const char* const* rows, int64_t count, int64_t columns, int64_t width, int64_t ahead, float* out) {
  for (int64_t row = 0; row < width; row += kLanes) {
    const int64_t some = smaller(kLanes, count - row);
    if (ahead > 0) prefetch_rows(rows + row, some, columns * int64_t(sizeof(T)), ahead);
    for (int64_t column = 0; column < columns; column += kLanes) {
      const int64_t wide = smaller(kLanes, columns - column);
      vf square[kLanes];
      if (some == kLanes && wide == kLanes) {
        load_square<T>(rows + row, column, square);
      } else {
        load_part<T>(rows + row, some, column, wide, square);
      }
      transpose(square);
      float* to = out + column * width + row;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i < wide) store(to + i * width, square[i]);
      }
    }
  }
}

template <typename T>
void widen_rows(const char* const* rows, int64_t count, int64_t columns, float* out) {
  const int64_t stride = padded(columns);
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      store(out + row * stride + column,
            load_some(reinterpret_cast<const T*>(rows[row]) + column, smaller(kLanes, columns - column)));
    }
  }
}

// out[j][column] = the pair (rows[2j][column], rows[2j + 1][column]); a row beyond count is zero.
void pair_rows(const char* const* rows, int64_t count, int64_t columns, float* out) {
  const int64_t stride = padded(columns);
  for (int64_t row = 0; row < count; row += 2) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      const int64_t wide = smaller(kLanes, columns - column);
      const vf even = load_some(reinterpret_cast<const bf16*>(rows[row]) + column, wide);
      vf odd = zero();
      if (row + 1 < count) odd = load_some(reinterpret_cast<const bf16*>(rows[row + 1]) + column, wide);
      store(out + row / 2 * stride + column, float_of(bits_of(even) >> 16 | bits_of(odd)));
    }
  }
}

}  // namespace

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
