// Runs of eight weights of a grid, on the device: their levels as bytes, from the grids' words. Device code, internal
// to kernels.
#pragma once

#include "kernels/weights/cuda_layout.h"

namespace headrace::kernels::cuda {

static __device__ const auto kDevice2Xxs = kGrid2Xxs;
static __device__ const auto kDevice2Xs = kGrid2Xs;
static __device__ const auto kDevice2S = kGrid2S;
static __device__ const auto kDevice3Xxs = kGrid3Xxs;
static __device__ const auto kDevice3S = kGrid3S;

template <WeightType kType>
__device__ inline const auto& device_grid() {
  if constexpr (kType == WeightType::kIQ2XXS) {
    return kDevice2Xxs;
  } else if constexpr (kType == WeightType::kIQ2XS) {
    return kDevice2Xs;
  } else if constexpr (kType == WeightType::kIQ2S) {
    return kDevice2S;
  } else if constexpr (kType == WeightType::kIQ3XXS) {
    return kDevice3Xxs;
  } else {
    static_assert(kType == WeightType::kIQ3S);
    return kDevice3S;
  }
}

// The levels of a run, four bytes in a word. `words`: of the type's grid.
template <WeightType kType, typename Word>
__device__ inline uint2 grid_levels(const Word* words, const GridRun& run) {
  if constexpr (is_grid_of_3(kType)) {
    constexpr bool kS = kType == WeightType::kIQ3S;
    constexpr uint32_t kLow = kS ? kLevels3S[0] | kLevels3S[1] << 8 | kLevels3S[2] << 16 | kLevels3S[3] << 24
                                 : kLevels3Xxs[0] | kLevels3Xxs[1] << 8 | kLevels3Xxs[2] << 16 | kLevels3Xxs[3] << 24;
    constexpr uint32_t kHigh = kS ? kLevels3S[4] | kLevels3S[5] << 8 | kLevels3S[6] << 16 | kLevels3S[7] << 24
                                  : kLevels3Xxs[4] | kLevels3Xxs[5] << 8 | kLevels3Xxs[6] << 16 | kLevels3Xxs[7] << 24;
    return make_uint2(__byte_perm(kLow, kHigh, words[run.first]), __byte_perm(kLow, kHigh, words[run.second]));
  } else {
    constexpr uint32_t kLow = kLevels2[0] | kLevels2[1] << 8 | kLevels2[2] << 16;
    const uint32_t word = words[run.first];
    return make_uint2(__byte_perm(kLow, 0, word), __byte_perm(kLow, 0, word >> 16));
  }
}

// Weight `i` of a run less its scale and factor.
template <WeightType kType>
__device__ inline float grid_level(const GridRun& run, int i) {
  const uint2 levels = grid_levels<kType>(device_grid<kType>().words, run);
  const auto level = static_cast<float>((i < 4 ? levels.x : levels.y) >> 8 * (i % 4) & 255);
  return (run.signs >> i & 1) != 0 ? -level : level;
}

}  // namespace headrace::kernels::cuda
