// How values become int8 on CUDA (op.h): the scale of the largest magnitude, and the rounding. Device code.
#pragma once

#include <cstdint>

#include "kernels/int8/op.h"

namespace headrace::kernels::cuda {

struct RowQuant {
  float scale, inverse;
  uint32_t mask;  // of a word of values

  RowQuant() = default;
  // `top`: NaN if a value is.
  __device__ explicit RowQuant(float top) {
    const bool finite = top < __int_as_float(0x7f800000), tiny = top < kTinyInt8Row;
    scale = !finite ? __int_as_float(0x7fc00000) : tiny ? 0.0f : __fdiv_rn(top, 127.0f);
    inverse = !finite || tiny ? 0.0f : __fdiv_rn(127.0f, top);
    mask = finite ? ~0u : 0u;
  }
  // The low byte of a sum with 1.5 * 2^23 is the nearest integer.
  __device__ uint32_t bits_of(float value) const {
    return __float_as_uint(__fadd_rn(__fmul_rn(value, inverse), 12582912.0f));
  }
  __device__ uint32_t word_of(const float* four) const {
    return pack_low_bytes(bits_of(four[0]), bits_of(four[1]), bits_of(four[2]), bits_of(four[3])) & mask;
  }
  __device__ uint32_t half_word_of(const float* two) const {
    return __byte_perm(bits_of(two[0]), bits_of(two[1]), 0x0040) & mask & 0xffff;
  }

  // The low bytes of four words, the first lowest.
  __device__ static uint32_t pack_low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
  }
};

}  // namespace headrace::kernels::cuda
