#include "kernels/sample/cpu_isa.h"

#include "kernels/cpu/shuffle.h"
#include "kernels/cpu/simd.h"
#include "kernels/sample/philox.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr float kInfinity = __builtin_inff();

HEADRACE_SIMD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Loads `count` of kLanes; the others are -inf.
HEADRACE_SIMD vf load_logits(const float* p, int64_t count) {
  if (count >= kLanes) return load(p);
  vi lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return select(lane < int32_t(count), load(p, count), splat(-kInfinity));
}

HEADRACE_SIMD bool any(vi mask) {
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= mask[i];
  return all != 0;
}

float largest_of(const float* logits, int64_t count) {
  constexpr int kAtOnce = 4;
  vf top[kAtOnce];
  vi nans[kAtOnce] = {};
  for (vf& t : top) t = splat(-kInfinity);
  int64_t i = 0;
  for (; i + kAtOnce * kLanes <= count; i += kAtOnce * kLanes) {
    for (int j = 0; j < kAtOnce; ++j) {
      const vf x = load(logits + i + j * kLanes);
      nans[j] |= x != x;
      top[j] = max(top[j], x);
    }
  }
  for (; i < count; i += kLanes) {
    const vf x = load_logits(logits + i, count - i);
    nans[0] |= x != x;
    top[0] = max(top[0], x);
  }
  if (any(nans[0] | nans[1] | nans[2] | nans[3])) return __builtin_nanf("");
  return largest_lane(max(max(top[0], top[1]), max(top[2], top[3])));
}

int64_t first_of(const float* logits, int64_t count, float value) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const vi equal = load_logits(logits + i, count - i) == value;
    if (!any(equal)) continue;
    for (int j = 0; j < kLanes && i + j < count; ++j) {
      if (equal[j] != 0) return i + j;
    }
  }
  return count;
}

HEADRACE_SIMD vf gaps_of(const SampleRow& row, int64_t id) {
  return (row.top - load_logits(row.logits + id, row.vocab - id)) * row.inverse_temperature;
}

void gaps(const SampleRow& row, int64_t first, int64_t count, float* out, float* weights) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const vf gap = gaps_of(row, first + i);
    store_some(out + i, gap, smaller(kLanes, count - i));
    store_some(weights + i, exp(-gap), smaller(kLanes, count - i));
  }
}

// ---- The noise ------------------------------------------------------------------------------------------------------

// The products of the lower 32 bits.
HEADRACE_SIMD vq multiply_low(vq a, uint64_t b) {
#if defined(__AVX512F__)
  return (vq)_mm512_mul_epu32((__m512i)a, (__m512i)(vq{} + b));
#elif defined(__AVX2__)
  return (vq)_mm256_mul_epu32((__m256i)a, (__m256i)(vq{} + b));
#elif defined(__SSE2__)
  return (vq)_mm_mul_epu32((__m128i)a, (__m128i)(vq{} + b));
#else
  return (a & 0xffffffffu) * b;
#endif
}

// Philox (philox.h) of one counter and position in 64-bit lanes, whose upper halves are ignored.
HEADRACE_SIMD void philox_of(uint64_t seed, int64_t position, vq counter, vq (&c)[4]) {
  c[0] = counter;
  c[1] = vq{};
  c[2] = vq{} + uint64_t(position);
  c[3] = vq{} + (uint64_t(position) >> 32);
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const vq product0 = multiply_low(c[0], kPhiloxMultiplier0), product1 = multiply_low(c[2], kPhiloxMultiplier1);
    c[0] = (product1 >> 32) ^ c[1] ^ uint64_t(key0);
    c[1] = product1;
    c[2] = (product0 >> 32) ^ c[3] ^ uint64_t(key1);
    c[3] = product0;
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
}

// The words of tokens [id, id + 2 kLanes), id a multiple of 4.
HEADRACE_SIMD void words_of(uint64_t seed, int64_t position, int64_t id, vu (&words)[2]) {
  vq counter, c[4];
  for (int i = 0; i < kLanes / 2; ++i) counter[i] = uint64_t(id / 4 + i);
  philox_of(seed, position, counter, c);
  const vq first = (c[0] & 0xffffffffu) | c[1] << 32, second = (c[2] & 0xffffffffu) | c[3] << 32;
  words[0] = reinterpret_cast<vu>(zip_low(first, second));
  words[1] = reinterpret_cast<vu>(zip_high(first, second));
}

// The words of kLanes arbitrary tokens.
HEADRACE_SIMD vu words_of(uint64_t seed, int64_t position, const int32_t* tokens) {
  vu words;
  for (int half = 0; half < kLanes; half += kLanes / 2) {
    vq token, c[4];
    for (int i = 0; i < kLanes / 2; ++i) token[i] = uint64_t(uint32_t(tokens[half + i]));
    philox_of(seed, position, token >> 2, c);
    const vq even = (token & 2) != 0 ? c[2] : c[0], odd = (token & 2) != 0 ? c[3] : c[1];
    const vq word = (token & 1) != 0 ? odd : even;
    for (int i = 0; i < kLanes / 2; ++i) words[half + i] = uint32_t(word[i]);
  }
  return words;
}

// 2 atanh(s) for |s| <= 0.18, within about 1 ulp.
HEADRACE_SIMD vf twice_atanh(vf s) {
  const vf z = s * s;
  vf p = splat(2.0f / 11);
  p = fma(p, z, splat(2.0f / 9));
  p = fma(p, z, splat(2.0f / 7));
  p = fma(p, z, splat(2.0f / 5));
  p = fma(p, z, splat(2.0f / 3));
  return fma(p * z, s, s + s);
}

// x = 2^exponent * fraction, the fraction in [sqrt(1/2), sqrt(2)); x > 0 and normal.
HEADRACE_SIMD void split(vf x, vf* exponent, vf* fraction) {
  const vi bits = reinterpret_cast<vi>(x) - 0x3f3504f3;  // sqrt(1/2)
  *exponent = __builtin_convertvector(bits >> 23, vf);
  *fraction = reinterpret_cast<vf>((bits & 0x7fffff) + 0x3f3504f3);
}

// -log(1 - u) for u in (0, 1). log(m) = 2 atanh((m - 1) / (m + 1)); for a small u, where 1 - u would lose the last bits
// of u, it uses m - 1 = -u directly.
HEADRACE_SIMD vf exponential(vf u) {
  vf exponent, m;
  split(1.0f - u, &exponent, &m);
  const vi small = u < 0.25f;
  const vf over = select(small, u, 1.0f - m), under = select(small, 2.0f - u, 1.0f + m);
  return fma(select(small, zero(), exponent), splat(-0x1.62e43p-1f), twice_atanh(over / under));
}

HEADRACE_SIMD vf gumbel(vu words) {
  const vf u = min((__builtin_convertvector(words, vf) + 0.5f) * 0x1p-32f, splat(1.0f - 0x1p-24f));
  vf exponent, m;
  split(exponential(u), &exponent, &m);
  return fma(exponent, splat(-0x1.62e43p-1f), twice_atanh((1.0f - m) / (1.0f + m)));
}

// Updates the best of each lane with the tokens from id on.
HEADRACE_SIMD void consider(const SampleBorder& border, vf gap, vu words, int64_t id, vf* best, vi* best_id) {
  vi lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = int32_t(id) + i;
  const vi passes = (gap < border.gap) | ((gap == border.gap) & (lane <= int32_t(border.id)));
  const vf score = select(passes, gumbel(words) - gap, splat(-kInfinity));
  const vi better = score > *best;
  *best = select(better, score, *best);
  *best_id = better ? lane : *best_id;
}

int64_t draw(const SampleRow& row, const SampleBorder& border, uint64_t seed, int64_t position) {
  vf best = splat(-kInfinity);
  vi best_id = {};
  for (int64_t id = 0; id < row.vocab; id += 2 * kLanes) {
    const vf first = gaps_of(row, id);
    const vf second = id + kLanes < row.vocab ? gaps_of(row, id + kLanes) : splat(kInfinity);
    if (!any((first <= border.gap) | (second <= border.gap))) continue;
    vu words[2];
    words_of(seed, position, id, words);
    consider(border, first, words[0], id, &best, &best_id);
    consider(border, second, words[1], id + kLanes, &best, &best_id);
  }
  int winner = 0;  // on equal scores the lower id
  for (int i = 1; i < kLanes; ++i) {
    if (best[i] > best[winner] || (best[i] == best[winner] && best_id[i] < best_id[winner])) winner = i;
  }
  return best_id[winner];
}

void noise(uint64_t seed, int64_t position, const int32_t* tokens, int64_t first, int64_t count, float* out) {
  if (tokens == nullptr) {
    for (int64_t i = 0; i < count; i += 2 * kLanes) {
      vu words[2];
      words_of(seed, position, first + i, words);
      store_some(out + i, gumbel(words[0]), smaller(kLanes, count - i));
      if (count - i > kLanes) store_some(out + i + kLanes, gumbel(words[1]), smaller(kLanes, count - i - kLanes));
    }
    return;
  }
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t some = smaller(kLanes, count - i);
    int32_t ids[kLanes] = {};
    for (int64_t j = 0; j < some; ++j) ids[j] = tokens[i + j];
    store_some(out + i, gumbel(words_of(seed, position, ids)), some);
  }
}

}  // namespace

const SampleKernels sample_kernels = {largest_of, first_of, gaps, draw, noise};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
