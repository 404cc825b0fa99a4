#include "kernels/cpu/shuffle.h"
#include "kernels/int8/cpu_dot.h"
#include "kernels/int8/cpu_isa.h"
#include "kernels/int8/cpu_scale.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

// ---- Rotation and quantisation --------------------------------------------------------------------------------------

// Lanes i and i + kApart become their sum and difference. The factor is exact, so an FMA rounds as a sum does.
template <int kApart>
HEADRACE_SIMD vf butterfly(vf v) {
#if defined(__AVX512F__)
  constexpr float s[] = {kApart & 1 ? -1 : 1, kApart & 2 ? -1 : 1, kApart & 4 ? -1 : 1, kApart & 8 ? -1 : 1};
  const vf sign = {1,
                   s[0],
                   s[1],
                   s[0] * s[1],
                   s[2],
                   s[0] * s[2],
                   s[1] * s[2],
                   s[0] * s[1] * s[2],
                   s[3],
                   s[0] * s[3],
                   s[1] * s[3],
                   s[0] * s[1] * s[3],
                   s[2] * s[3],
                   s[0] * s[2] * s[3],
                   s[1] * s[2] * s[3],
                   s[0] * s[1] * s[2] * s[3]};
  constexpr int x = kApart;
  const vf other = __builtin_shufflevector(v, v, 0 ^ x, 1 ^ x, 2 ^ x, 3 ^ x, 4 ^ x, 5 ^ x, 6 ^ x, 7 ^ x, 8 ^ x, 9 ^ x,
                                           10 ^ x, 11 ^ x, 12 ^ x, 13 ^ x, 14 ^ x, 15 ^ x);
#elif defined(__AVX2__)
  constexpr float s[] = {kApart & 1 ? -1 : 1, kApart & 2 ? -1 : 1, kApart & 4 ? -1 : 1};
  const vf sign = {1, s[0], s[1], s[0] * s[1], s[2], s[0] * s[2], s[1] * s[2], s[0] * s[1] * s[2]};
  constexpr int x = kApart;
  const vf other = __builtin_shufflevector(v, v, 0 ^ x, 1 ^ x, 2 ^ x, 3 ^ x, 4 ^ x, 5 ^ x, 6 ^ x, 7 ^ x);
#else
  constexpr float s[] = {kApart & 1 ? -1 : 1, kApart & 2 ? -1 : 1};
  const vf sign = {1, s[0], s[1], s[0] * s[1]};
  constexpr int x = kApart;
  const vf other = __builtin_shufflevector(v, v, 0 ^ x, 1 ^ x, 2 ^ x, 3 ^ x);
#endif
  return fma(v, sign, other);
}

// As integers magnitudes have the same order, above them infinity and then NaN.
HEADRACE_SIMD vi higher(vi top, vf v) {
  const vi magnitude = reinterpret_cast<vi>(v) & 0x7fffffff;
  return top < magnitude ? magnitude : top;
}

// kBlock values in place; the butterflies have distances 1, 2, 4, … in this order.
template <int kBlock>
HEADRACE_SIMD vi rotate(float* p, vi top) {
  constexpr int kVectors = kBlock / kLanes;
  vf v[kVectors];
#pragma GCC unroll 32
  for (int i = 0; i < kVectors; ++i) {
    v[i] = butterfly<2>(butterfly<1>(load(p + i * kLanes)));
    if constexpr (kLanes >= 8) v[i] = butterfly<4>(v[i]);
    if constexpr (kLanes >= 16) v[i] = butterfly<8>(v[i]);
  }
#pragma GCC unroll 8
  for (int apart = 1; apart < kVectors; apart *= 2) {
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i) {
      if ((i & apart) != 0) continue;
      const vf a = v[i], b = v[i + apart];
      v[i] = a + b;
      v[i + apart] = a - b;
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < kVectors; ++i) {
    store(p + i * kLanes, v[i]);
    top = higher(top, v[i]);
  }
  return top;
}

template <int kBlock>
vi rotate_row(float* values, int64_t padded) {
  vi top = {};
  for (int64_t i = 0; i < padded; i += kBlock) top = rotate<kBlock>(values + i, top);
  return top;
}

vi top_of_row(const float* values, int64_t padded) {
  vi top = {};
  for (int64_t i = 0; i < padded; i += kLanes) top = higher(top, load(values + i));
  return top;
}

// The low bytes of the lanes of four vectors.
HEADRACE_SIMD void store_low_bytes(int8_t* to, const vi (&v)[4]) {
#if defined(__AVX512F__)
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)v[i]);
    memcpy(to + i * kLanes, &bytes, sizeof bytes);
  }
#elif defined(__AVX2__)
  const __m256i byte = _mm256_set1_epi32(255);
  const __m256i low = _mm256_packus_epi32((__m256i)v[0] & byte, (__m256i)v[1] & byte);
  const __m256i high = _mm256_packus_epi32((__m256i)v[2] & byte, (__m256i)v[3] & byte);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
  memcpy(to, &bytes, sizeof bytes);
#else
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < kLanes; ++j) to[i * kLanes + j] = static_cast<int8_t>(v[i][j] & 255);
  }
#endif
}

float quantise(float* values, int64_t padded, int64_t block, int8_t* bytes) {
  const vi tops = block == 128  ? rotate_row<128>(values, padded)
                  : block == 64 ? rotate_row<64>(values, padded)
                                : top_of_row(values, padded);
  int32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits = tops[i] > bits ? tops[i] : bits;
  const Int8Scale scale = int8_scale(bits);
  if (scale.zeros) {
    memset(bytes, 0, static_cast<size_t>(padded));
    return scale.scale;
  }
  for (int64_t i = 0; i < padded; i += 4 * kLanes) {
    vi q[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      q[j] = reinterpret_cast<vi>(load(values + i + j * kLanes) * scale.inverse + kRoundToInteger);
    store_low_bytes(bytes + i, q);
  }
  return scale.scale;
}

// ---- Panels ---------------------------------------------------------------------------------------------------------

void make_panel(const int8_t* rows, int64_t padded, int8_t* panel) {
  vi sums[kPanelVectors] = {};
  for (int64_t col = 0; col < padded; col += 4 * kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < kPanelVectors; ++part) {
      vf square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const vi four = load_ints(rows + (part * kLanes + i) * padded + col);
        square[i] = reinterpret_cast<vf>(four);
      }
      transpose(square);
      int8_t* to = panel + (col * kPanel + part * kLanes * 4);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i, to += kPanel * 4) {
        store_ints(to, reinterpret_cast<vi>(square[i]));
        sums[part] = Int8Dot::add(sums[part], Int8Dot::ones(), Int8Dot::read(to));
      }
    }
  }
  for (int part = 0; part < kPanelVectors; ++part) {
    store_ints(panel + padded * kPanel + part * kLanes * 4, sums[part]);
  }
}

}  // namespace

const Int8ConvertKernels int8_convert_kernels = {quantise, make_panel};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
