// The types whose weights come in runs of 8 or 4 with an index in a grid of such runs (IQ2_XXS, IQ2_XS, IQ2_S; IQ3_XXS,
// IQ3_S), and a sign for each weight. Where two of a run's eight signs follow from the others, seven are stored: the
// number of minus signs is even. A weight is d * (2 s + 1) * level * factor, negative if its sign is set, with s in
// four bits; every product of these but the last rounding is exact in f32. Pure; host and device.
#pragma once

#include "kernels/weights/grid_words.h"
#include "kernels/weights/type.h"

#if defined(__CUDACC__)
#define HEADRACE_BOTH __host__ __device__
#define HEADRACE_GRID HEADRACE_BOTH constexpr
#else
#define HEADRACE_BOTH
#define HEADRACE_GRID \
  __attribute__((always_inline)) constexpr  // in sources of all instruction sets (kernels/cpu/isa.h)
#endif

namespace headrace {

constexpr uint8_t kLevels2[] = {8, 25, 43};                         // IQ2_*
constexpr uint8_t kLevels3Xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};  // IQ3_XXS
constexpr uint8_t kLevels3S[] = {1, 3, 5, 7, 9, 11, 13, 15};        // IQ3_S

HEADRACE_BOTH constexpr bool is_grid(WeightType type) {
  return type >= WeightType::kIQ2XXS && type <= WeightType::kIQ3S;
}
HEADRACE_BOTH constexpr bool is_grid_of_3(WeightType type) {
  return type == WeightType::kIQ3XXS || type == WeightType::kIQ3S;
}
// Halvings of the levels.
HEADRACE_GRID int grid_shift(WeightType type) {
  return type == WeightType::kIQ3S ? 0 : type == WeightType::kIQ3XXS ? 2 : 3;
}
HEADRACE_GRID float grid_factor(WeightType type) { return 1.0f / static_cast<float>(1 << grid_shift(type)); }
// Whether a scale is for 16 weights; else it is for 32.
HEADRACE_GRID bool has_narrow_scales(WeightType type) {
  return type == WeightType::kIQ2XS || type == WeightType::kIQ2S;
}

HEADRACE_GRID unsigned eight_signs(unsigned seven) {
  unsigned parity = seven ^ seven >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | (parity & 1) << 7;
}

// What a block has of eight weights: their places in the grid (one of 8 weights, or two of 4), and their signs.
struct GridRun {
  unsigned first, second, signs;
};

HEADRACE_GRID unsigned little_word(const uint8_t* bytes) {
  return static_cast<unsigned>(bytes[0] | bytes[1] << 8 | bytes[2] << 16) | static_cast<unsigned>(bytes[3]) << 24;
}

// Of a block of 256 weights: the run with the number `run`, of 32.
HEADRACE_GRID GridRun grid_run(WeightType type, const uint8_t* block, int run) {
  const int group = run / 4, in_group = run % 4;
  switch (type) {
    case WeightType::kIQ2XXS:
      return {block[2 + 8 * group + in_group], 0,
              eight_signs(little_word(block + 6 + 8 * group) >> 7 * in_group & 127)};
    case WeightType::kIQ2XS: {
      const unsigned both = block[2 + 2 * run] | static_cast<unsigned>(block[3 + 2 * run]) << 8;
      return {both & 511, 0, eight_signs(both >> 9)};
    }
    case WeightType::kIQ2S:
      return {block[2 + run] | (block[66 + group] >> 2 * in_group & 3u) << 8, 0, block[34 + run]};
    case WeightType::kIQ3XXS:
      return {block[2 + 2 * run], block[3 + 2 * run],
              eight_signs(little_word(block + 66 + 4 * group) >> 7 * in_group & 127)};
    default: {  // IQ3_S
      const unsigned high = block[66 + group] >> 2 * in_group;
      return {block[2 + 2 * run] | (high & 1) << 8, block[3 + 2 * run] | (high & 2) << 7, block[74 + run]};
    }
  }
}

// 2 s + 1 of the 16 weights with the number `number`.
HEADRACE_GRID unsigned grid_scale(WeightType type, const uint8_t* block, int number) {
  const int group = number / 2;
  switch (type) {
    case WeightType::kIQ2XXS:
      return 2u * (block[9 + 8 * group] >> 4) + 1;
    case WeightType::kIQ2XS:
      return 2u * (block[66 + group] >> 4 * (number % 2) & 15) + 1;
    case WeightType::kIQ2S:
      return 2u * (block[74 + group] >> 4 * (number % 2) & 15) + 1;
    case WeightType::kIQ3XXS:
      return 2u * (block[69 + 4 * group] >> 4) + 1;
    default:
      return 2u * (block[106 + group / 2] >> 4 * (group % 2) & 15) + 1;
  }
}

// The levels of the grids as bytes, the first weight lowest, for CPUs; and 0 or 255 for each of eight signs.
template <typename Bytes, int kEntries>
struct ByteTable {
  Bytes entries[kEntries];
};
extern const ByteTable<uint64_t, 256> kBytes2Xxs;
extern const ByteTable<uint64_t, 512> kBytes2Xs;
extern const ByteTable<uint64_t, 1024> kBytes2S;
extern const ByteTable<uint32_t, 256> kBytes3Xxs;
extern const ByteTable<uint32_t, 512> kBytes3S;
extern const ByteTable<uint64_t, 256> kSignBytes;

}  // namespace headrace
