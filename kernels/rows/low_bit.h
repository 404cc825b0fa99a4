// The formats of kernels/rows/op.h for *_isa.cc sources (kernels/cpu/simd.h). Pure; everything is in the set's own
// namespace.
#pragma once

#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

// A byte for each lane.
typedef uint8_t vbyte __attribute__((vector_size(kLanes)));

HEADRACE_SIMD vbyte load_bytes(const void* p, int64_t count) {
  vbyte v = {};
  if (count == kLanes) {
    memcpy(&v, p, sizeof v);
  } else {
    memcpy(&v, p, size_t(count));
  }
  return v;
}
HEADRACE_SIMD vi widen_signed(vbyte b) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvtepi8_epi32((__m128i)b);
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)b));
#else
  return (vi)(__builtin_convertvector(b, vu) << 24) >> 24;
#endif
}

// A value of int8, loaded as simd.h loads bf16.
struct int8_value {
  int8_t bits;
};
HEADRACE_SIMD vf load(const int8_value* p, int64_t count) {
  return __builtin_convertvector(widen_signed(load_bytes(p, count)), vf);
}
HEADRACE_SIMD vf load(const int8_value* p) { return load(p, kLanes); }

// Two of them, loaded as a lane's pair of bf16, which has them exactly.
struct int8_pair {
  int8_t even, odd;
};
HEADRACE_SIMD vf pairs_of(vh bytes) {
  const vu wide = __builtin_convertvector(bytes, vu);
  const vi even = (vi)(wide << 24) >> 24, odd = (vi)(wide << 16) >> 24;
  return float_of(bits_of(__builtin_convertvector(even, vf)) >> 16 | bits_of(__builtin_convertvector(odd, vf)));
}
HEADRACE_SIMD vf load(const int8_pair* p) { return pairs_of(load_halves(p)); }
HEADRACE_SIMD vf load(const int8_pair* p, int64_t count) { return pairs_of(load_halves(p, count)); }

namespace {

constexpr int64_t kHalfGroup = kInt4Group / 2;
static_assert(kHalfGroup % kLanes == 0);

// As cache/base.h: row_value_bytes(), and row_parameter_bytes() / 2.
HEADRACE_SIMD int64_t value_bytes(DType type, int64_t head_dim) {
  return type == DType::kF32    ? 4 * head_dim
         : type == DType::kInt8 ? head_dim
         : type == DType::kInt4 ? head_dim / 2
                                : 2 * head_dim;
}
HEADRACE_SIMD int64_t parameter_count(DType type, int64_t head_dim) {
  return type == DType::kInt8 ? 1 : type == DType::kInt4 ? head_dim / kInt4Group * 2 : 0;
}

HEADRACE_SIMD float widen_one(const f16* p) { return load(p, 1)[0]; }

// Multiplies by the orthonormal Hadamard matrix of `dim`, a power of two: its own inverse.
void hadamard(float* values, int64_t dim) {
  for (int64_t half = 1; half < dim; half *= 2) {
    for (int64_t begin = 0; begin < dim; begin += 2 * half) {
      for (int64_t i = begin; i < begin + half; ++i) {
        const float a = values[i], b = values[i + half];
        values[i] = a + b;
        values[i + half] = a - b;
      }
    }
  }
  const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
  for (int64_t i = 0; i < dim; ++i) values[i] *= norm;
}

// A row of int4, in f32 and still rotated.
HEADRACE_SIMD void widen_int4(const void* values, const f16* parameters, int64_t head_dim, float* out) {
  const uint8_t* bytes = static_cast<const uint8_t*>(values);
  for (int64_t group = 0; group < head_dim / kInt4Group; ++group) {
    const vf scale = splat(widen_one(parameters + 2 * group)), minimum = splat(widen_one(parameters + 2 * group + 1));
    for (int64_t i = 0; i < kHalfGroup; i += kLanes) {
      const vi both = widen_signed(load_bytes(bytes + group * kHalfGroup + i, kLanes));
      float* to = out + group * kInt4Group + i;
      store(to, fma(__builtin_convertvector(both & 15, vf), scale, minimum));
      store(to + kHalfGroup, fma(__builtin_convertvector((both >> 4) & 15, vf), scale, minimum));
    }
  }
}

}  // namespace

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
