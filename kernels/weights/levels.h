// What quantised blocks are read with, for *_isa.cc sources (kernels/cpu/isa.h): rounding to the types that products
// compute in, small integers and f16 numbers as vectors, and the values of 4- and 5-bit weights. Pure.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/weights/type.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

#define HEADRACE_INLINE __attribute__((always_inline))

struct RoundF32 {
  HEADRACE_SIMD vf round(vf v) { return v; }
};
struct RoundF16 {
  HEADRACE_SIMD vf round(vf v) { return widen_f16(narrow_f16(v)); }
};
struct RoundBf16 {
  HEADRACE_SIMD vf round(vf v) {
    const vu bits = bits_of(v);
    return float_of(select(vi(v != v), bits | 0x400000, bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000);
  }
};

HEADRACE_SIMD vu load_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  typedef uint8_t vb __attribute__((vector_size(kLanes)));
  vb bytes;
  memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, vu);
#endif
}
HEADRACE_SIMD vi load_signed_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  return (vi)(load_bytes(p) << 24) >> 24;
#endif
}
HEADRACE_SIMD vf to_float(vi v) { return __builtin_convertvector(v, vf); }
HEADRACE_SIMD vf splat_f16(const uint8_t* p) {
  uint16_t bits;
  memcpy(&bits, p, sizeof bits);
  return widen_f16(vh{} + bits);
}
// Of two f16 numbers, one after the other.
HEADRACE_SIMD void splat_f16_pair(const uint8_t* p, vf* first, vf* second) {
#if defined(__AVX512F__)
  int32_t bits;
  memcpy(&bits, p, sizeof bits);
  const __m512 both = _mm512_cvtph_ps(_mm256_set1_epi32(bits));
  *first = (vf)_mm512_moveldup_ps(both);
  *second = (vf)_mm512_movehdup_ps(both);
#else
  *first = splat_f16(p);
  *second = splat_f16(p + 2);
#endif
}
HEADRACE_SIMD vf splat_signed(float value) { return value - vf{}; }  // splat() makes -0 to 0
HEADRACE_SIMD vf no_min() { return float_of(vu{} + 0x80000000u); }   // -0
HEADRACE_SIMD vi lane_numbers() {
#if defined(__AVX512F__)
  return vi{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
  return vi{0, 1, 2, 3, 4, 5, 6, 7};
#else
  return vi{0, 1, 2, 3};
#endif
}

// 16 in each lane whose bit is set, from bit `first` on.
HEADRACE_SIMD vu sixteens(uint32_t bits, int first) {
#if defined(__AVX512F__)
  return (vu)_mm512_maskz_set1_epi32(static_cast<__mmask16>(bits >> first), 16);
#else
  return (((vu{} + bits) >> vu(lane_numbers() + first)) & 1) << 4;
#endif
}

// The bytes of a group, in pairs that shifts do not keep apart, but masks do.
typedef uint16_t BytePairs __attribute__((vector_size(32)));
typedef uint8_t Bytes __attribute__((vector_size(32)));
HEADRACE_SIMD void load_pairs(const uint8_t* p, BytePairs* pairs) { memcpy(pairs, p, sizeof *pairs); }

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima into 12 bytes: the first four of each in the low six
// bits of bytes 0 to 3 and 4 to 7, the rest as a nibble each of bytes 8 to 11 with the two bits left over above.
HEADRACE_SIMD void unpack_six_bits(const uint8_t* packed, uint8_t* six) {
  uint32_t a, b, c;
  memcpy(&a, packed, 4);
  memcpy(&b, packed + 4, 4);
  memcpy(&c, packed + 8, 4);
  const uint32_t words[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), b & 0x3f3f3f3f,
                             (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
  memcpy(six, words, sizeof words);
}

// Q3_K packs sixteen 6-bit scales into 12 bytes: the lower four bits of the first eight in the low halves of bytes 0 to
// 7, of the rest in the high halves; the upper two bits of scale g in byte 8 + g % 4.
HEADRACE_SIMD void unpack_sixteen_scales(const uint8_t* packed, uint8_t* scales) {
  uint32_t low[2], high;
  memcpy(low, packed, 8);
  memcpy(&high, packed + 8, 4);
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = (low[i % 2] >> i / 2 * 4 & 0x0f0f0f0f) | (high >> 2 * i & 0x03030303) << 4;
    memcpy(scales + 4 * i, &word, sizeof word);
  }
}

// The weights of one scale and minimum, q of kBits bits. AVX-512 computes each of the 16 or 32 values once.
template <typename Round, int kBits, int kZero>
class Levels {
 public:
  static_assert(kBits == 4 || kBits == 5);
  HEADRACE_INLINE void set(vf scale, vf min) {
#if defined(__AVX512F__)
    const vf q = to_float(lane_numbers() - kZero);
    low_ = Round::round(fma(scale, q, min));
    if constexpr (kBits == 5) high_ = Round::round(fma(scale, q + 16.0f, min));
#else
    low_ = scale;
    high_ = min;
#endif
  }
  // Of q's lowest bits; the others are ignored.
  HEADRACE_INLINE vf at(vu q) const {
#if defined(__AVX512F__)
    if constexpr (kBits == 4) return (vf)_mm512_permutexvar_ps((__m512i)q, (__m512)low_);
    return (vf)_mm512_permutex2var_ps((__m512)low_, (__m512i)q, (__m512)high_);
#else
    return Round::round(fma(low_, to_float(vi(q & ((1 << kBits) - 1)) - kZero), high_));
#endif
  }

 private:
  vf low_, high_;  // the values of q below and from 16 on; else the scale and the minimum
};

struct Table {
  float levels[16];
  explicit constexpr Table(const int8_t (&of)[16]) : levels{} {
    for (int i = 0; i < 16; ++i) levels[i] = of[i];
  }
};
alignas(64) constexpr Table kTable(kLevels), kFloatTable(kFloatLevels);

// The weights of one scale whose q is the index of a level. AVX-512 computes each of the 16 values once.
template <typename Round, const Table& kOf = kTable>
class TableLevels {
 public:
  HEADRACE_INLINE void set(vf scale) {
#if defined(__AVX512F__)
    values_ = Round::round(scale * load(kOf.levels));
#else
    values_ = scale;
#endif
  }
  // Of q's lowest four bits; the others are ignored.
  HEADRACE_INLINE vf at(vu q) const {
#if defined(__AVX512F__)
    return (vf)_mm512_permutexvar_ps((__m512i)q, (__m512)values_);
#elif defined(__AVX2__)
    const vf low = (vf)_mm256_permutevar8x32_ps((__m256)load(kOf.levels), (__m256i)q);
    const vf high = (vf)_mm256_permutevar8x32_ps((__m256)load(kOf.levels + 8), (__m256i)q);
    return Round::round(values_ * (vf)_mm256_blendv_ps((__m256)low, (__m256)high, (__m256)(q << 28)));
#else
    vf levels;
    for (int i = 0; i < kLanes; ++i) levels[i] = kOf.levels[q[i] & 15];
    return Round::round(values_ * levels);
#endif
  }

 private:
  vf values_;  // else the scale
};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
