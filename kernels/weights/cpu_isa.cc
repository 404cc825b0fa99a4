// From blocks to weights. A value is scale * (q - zero) + minimum, the product and the sum rounded one after the other
// in f32, as the reference does, then once to the type that is asked for. A type without a minimum adds -0, which
// changes nothing. Where weights of one scale have few values, those are computed once and looked up.
#include "kernels/weights/cpu_isa.h"

#include "kernels/cpu/simd.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

// ---- Rounding and stores: by the type that values are rounded to, and the one they are written as ------------------

struct RoundF32 {
  HEADRACE_SIMD vf round(vf v) { return v; }
};
struct RoundF16 {
  HEADRACE_SIMD vf round(vf v) { return widen_f16(narrow_f16(v)); }
};
struct RoundBf16 {
  HEADRACE_SIMD vf round(vf v) {
    const vu bits = bits_of(v);
    const vu rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet_nan = bits | 0x400000;
    return float_of(select(vi(v != v), quiet_nan, rounded) & 0xffff0000);
  }
};
template <typename Round>
struct AsF32 : Round {
  using Element = float;
  HEADRACE_SIMD void put(float* p, vf v) { store(p, v); }
};
struct AsF16 : RoundF16 {
  using Element = f16;
  HEADRACE_SIMD void put(f16* p, vf v) { store_halves(p, narrow_f16(v)); }
};
struct AsBf16 : RoundBf16 {
  using Element = bf16;
  HEADRACE_SIMD void put(bf16* p, vf v) { store_halves(p, low_halves(bits_of(v) >> 16)); }
};

// ---- What blocks are made of ---------------------------------------------------------------------------------------

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
HEADRACE_SIMD vi load_signed_bytes(const uint8_t* p) { return (vi)(load_bytes(p) << 24) >> 24; }
HEADRACE_SIMD vf to_float(vi v) { return __builtin_convertvector(v, vf); }

HEADRACE_SIMD vf splat_f16(const uint8_t* p) {
  uint16_t bits;
  memcpy(&bits, p, sizeof bits);
  return widen_f16(vh{} + bits);
}
HEADRACE_SIMD vf no_min() { return float_of(vu{} + 0x80000000u); }  // -0
HEADRACE_SIMD vi lane_numbers() {
#if defined(__AVX512F__)
  return vi{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
  return vi{0, 1, 2, 3, 4, 5, 6, 7};
#else
  return vi{0, 1, 2, 3};
#endif
}

// The weights of one scale and minimum: q of kBits bits.
template <typename As, int kBits, int kZero>
class Levels {
 public:
  static_assert(kBits == 4 || kBits == 5);
  __attribute__((always_inline)) Levels(vf scale, vf min) {
#if defined(__AVX512F__)
    const vf q = to_float(lane_numbers() - kZero);
    low_ = As::round(scale * q + min);
    if constexpr (kBits == 5) high_ = As::round(scale * (q + 16.0f) + min);
#else
    scale_ = scale;
    min_ = min;
#endif
  }
  // Of q's lowest bits; the others are ignored.
  __attribute__((always_inline)) vf at(vu q) const {
#if defined(__AVX512F__)
    if constexpr (kBits == 4) return (vf)_mm512_permutexvar_ps((__m512i)q, (__m512)low_);
    return (vf)_mm512_permutex2var_ps((__m512)low_, (__m512i)q, (__m512)high_);
#else
    return As::round(scale_ * to_float(vi(q & ((1 << kBits) - 1)) - kZero) + min_);
#endif
  }

 private:
#if defined(__AVX512F__)
  vf low_, high_;
#else
  vf scale_, min_;
#endif
};

// 32 weights: byte i holds weight i in its low and weight i + 16 in its high four bits.
template <typename As, int kZero>
HEADRACE_SIMD void unpack_nibbles(vf scale, vf min, const uint8_t* nibbles, typename As::Element* out) {
  const Levels<As, 4, kZero> levels(scale, min);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += kLanes) {
    const vu q = load_bytes(nibbles + i);
    As::put(out + i, levels.at(q));
    As::put(out + 16 + i, levels.at(q >> 4));
  }
}
// The same with a fifth bit: bit i of `fifth` is that of weight i.
template <typename As, int kZero>
HEADRACE_SIMD void unpack_fives(vf scale, vf min, const uint8_t* fifth, const uint8_t* nibbles,
                                typename As::Element* out) {
  const Levels<As, 5, kZero> levels(scale, min);
  uint32_t high;
  memcpy(&high, fifth, sizeof high);
  const vu bits = vu{} + high;
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += kLanes) {
    const vu q = load_bytes(nibbles + i), lane = vu(lane_numbers() + i);
    As::put(out + i, levels.at((q & 15) | (bits >> lane & 1) << 4));
    As::put(out + 16 + i, levels.at(q >> 4 | (bits >> (lane + 16) & 1) << 4));
  }
}

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima into 12 bytes: the first four of each in the low six
// bits of bytes 0 to 3 and 4 to 7, the rest as a nibble each of bytes 8 to 11 with the two bits left over above.
struct SixBits {
  uint8_t scale[8], min[8];
};
HEADRACE_SIMD SixBits unpack_six_bits(const uint8_t* packed) {
  uint32_t a, b, c;
  memcpy(&a, packed, 4);
  memcpy(&b, packed + 4, 4);
  memcpy(&c, packed + 8, 4);
  const uint32_t words[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), b & 0x3f3f3f3f,
                             (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
  SixBits six;
  memcpy(six.scale, words, 8);
  memcpy(six.min, words + 2, 8);
  return six;
}

// ---- The types -----------------------------------------------------------------------------------------------------

struct Q4_0 {
  static constexpr int kElements = 32, kBytes = 18;
  template <typename As>
  HEADRACE_SIMD void unpack(const uint8_t* in, typename As::Element* out) {
    unpack_nibbles<As, 8>(splat_f16(in), no_min(), in + 2, out);
  }
};
struct Q4_1 {
  static constexpr int kElements = 32, kBytes = 20;
  template <typename As>
  HEADRACE_SIMD void unpack(const uint8_t* in, typename As::Element* out) {
    unpack_nibbles<As, 0>(splat_f16(in), splat_f16(in + 2), in + 4, out);
  }
};
struct Q5_0 {
  static constexpr int kElements = 32, kBytes = 22;
  template <typename As>
  HEADRACE_SIMD void unpack(const uint8_t* in, typename As::Element* out) {
    unpack_fives<As, 16>(splat_f16(in), no_min(), in + 2, in + 6, out);
  }
};
struct Q5_1 {
  static constexpr int kElements = 32, kBytes = 24;
  template <typename As>
  HEADRACE_SIMD void unpack(const uint8_t* in, typename As::Element* out) {
    unpack_fives<As, 0>(splat_f16(in), splat_f16(in + 2), in + 4, in + 8, out);
  }
};
struct Q8_0 {
  static constexpr int kElements = 32, kBytes = 34;
  template <typename As>
  HEADRACE_SIMD void unpack(const uint8_t* in, typename As::Element* out) {
    const vf scale = splat_f16(in);
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += kLanes) As::put(out + i, As::round(to_float(load_signed_bytes(in + 2 + i)) * scale));
  }
};

// Eight groups of 32; byte i of each run of 32 holds weight i of one group in its low bits, of the next in its high
// bits.
struct Q4_K {
  static constexpr int kElements = 256, kBytes = 144;
  template <typename As>
  HEADRACE_SIMD void unpack(const uint8_t* in, typename As::Element* out) {
    const vf scale = splat_f16(in), min = splat_f16(in + 2);
    const SixBits six = unpack_six_bits(in + 4);
    for (int group = 0; group < 8; group += 2) {
      const Levels<As, 4, 0> a(scale * static_cast<float>(six.scale[group]),
                               -(min * static_cast<float>(six.min[group])));
      const Levels<As, 4, 0> b(scale * static_cast<float>(six.scale[group + 1]),
                               -(min * static_cast<float>(six.min[group + 1])));
#pragma GCC unroll 8
      for (int i = 0; i < 32; i += kLanes) {
        const vu q = load_bytes(in + 16 + 16 * group + i);
        As::put(out + 32 * group + i, a.at(q));
        As::put(out + 32 * group + 32 + i, b.at(q >> 4));
      }
    }
  }
};
// As Q4_K; bit g of the fifth bits' byte i is the fifth bit of weight i of group g.
struct Q5_K {
  static constexpr int kElements = 256, kBytes = 176;
  template <typename As>
  HEADRACE_SIMD void unpack(const uint8_t* in, typename As::Element* out) {
    const vf scale = splat_f16(in), min = splat_f16(in + 2);
    const SixBits six = unpack_six_bits(in + 4);
    for (int group = 0; group < 8; group += 2) {
      const Levels<As, 5, 0> a(scale * static_cast<float>(six.scale[group]),
                               -(min * static_cast<float>(six.min[group])));
      const Levels<As, 5, 0> b(scale * static_cast<float>(six.scale[group + 1]),
                               -(min * static_cast<float>(six.min[group + 1])));
#pragma GCC unroll 8
      for (int i = 0; i < 32; i += kLanes) {
        const vu q = load_bytes(in + 48 + 16 * group + i), fifth = load_bytes(in + 16 + i) >> group;
        As::put(out + 32 * group + i, a.at((q & 15) | (fifth & 1) << 4));
        As::put(out + 32 * group + 32 + i, b.at(q >> 4 | (fifth & 2) << 3));
      }
    }
  }
};
// Two halves of 128: four runs of 32, their low four bits in 64 bytes (runs 0 and 1 low, 2 and 3 high), their high two
// in 32 bytes; a signed scale for each 16 weights.
struct Q6_K {
  static constexpr int kElements = 256, kBytes = 210;
  template <typename As>
  HEADRACE_SIMD void unpack(const uint8_t* in, typename As::Element* out) {
    const vf scale = splat_f16(in + 208);
    for (int half = 0; half < 2; ++half) {
      const uint8_t *const low = in + 64 * half, *const high = in + 128 + 32 * half;
      for (int run = 0; run < 4; ++run) {
#pragma GCC unroll 8
        for (int i = 0; i < 32; i += kLanes) {
          const auto six = static_cast<int8_t>(in[192 + 8 * half + 2 * run + i / 16]);
          const vu nibble = load_bytes(low + 32 * (run & 1) + i) >> (run < 2 ? 0 : 4) & 15;
          const vu top = load_bytes(high + i) >> (2 * run) & 3;
          const vf value = scale * static_cast<float>(six) * to_float(vi(nibble | top << 4) - 32);
          As::put(out + 128 * half + 32 * run + i, As::round(value));
        }
      }
    }
  }
};

template <typename As, typename Type>
void unpack_blocks(const void* blocks, int64_t count, void* out) {
  const uint8_t* in = static_cast<const uint8_t*>(blocks);
  auto* to = static_cast<typename As::Element*>(out);
  for (int64_t i = 0; i < count; ++i, in += Type::kBytes, to += Type::kElements) Type::template unpack<As>(in, to);
}

template <typename As>
void unpack_as(WeightType type, const void* blocks, int64_t count, void* out) {
  switch (type) {
    case WeightType::kQ4_0:
      return unpack_blocks<As, Q4_0>(blocks, count, out);
    case WeightType::kQ4_1:
      return unpack_blocks<As, Q4_1>(blocks, count, out);
    case WeightType::kQ5_0:
      return unpack_blocks<As, Q5_0>(blocks, count, out);
    case WeightType::kQ5_1:
      return unpack_blocks<As, Q5_1>(blocks, count, out);
    case WeightType::kQ8_0:
      return unpack_blocks<As, Q8_0>(blocks, count, out);
    case WeightType::kQ4K:
      return unpack_blocks<As, Q4_K>(blocks, count, out);
    case WeightType::kQ5K:
      return unpack_blocks<As, Q5_K>(blocks, count, out);
    case WeightType::kQ6K:
      return unpack_blocks<As, Q6_K>(blocks, count, out);
    default:
      __builtin_unreachable();
  }
}

void unpack(WeightType type, const void* blocks, int64_t count, DType rounded, DType to, void* out) {
  switch (rounded) {
    case DType::kF32:
      return unpack_as<AsF32<RoundF32>>(type, blocks, count, out);
    case DType::kF16:
      return to == rounded ? unpack_as<AsF16>(type, blocks, count, out)
                           : unpack_as<AsF32<RoundF16>>(type, blocks, count, out);
    case DType::kBF16:
      return to == rounded ? unpack_as<AsBf16>(type, blocks, count, out)
                           : unpack_as<AsF32<RoundBf16>>(type, blocks, count, out);
  }
}

}  // namespace

const WeightKernels weight_kernels = {unpack};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
