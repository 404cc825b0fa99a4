// Operand A of the tensor cores from packed weights, those of grids (kernels/weights/cuda_layout.h) among them.
#pragma once

#include <type_traits>

#include "kernels/product/packed_fragments.cuh"
#include "kernels/weights/cuda_grids.cuh"

namespace headrace::kernels::cuda {

// The block's copy of the words of its part's grid, in shared memory, where threads read different words.
__device__ inline uint32_t* grid_memory() {
  __shared__ uint32_t words[1024];
  return words;
}
template <typename Kind>
__device__ inline const auto* grid_words() {
  using Word = std::remove_cvref_t<decltype(device_grid<Kind::kWeight>().words[0])>;
  return reinterpret_cast<const Word*>(grid_memory());
}
// All threads of the block call it, before they read the words.
template <typename Kind>
__device__ inline void copy_grid() {
  const auto& grid = device_grid<Kind::kWeight>();
  static_assert(sizeof grid.words % 4 == 0 && sizeof grid.words <= 4096);
  const auto* const from = reinterpret_cast<const uint32_t*>(grid.words);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof grid.words / 4);
       i += static_cast<int>(blockDim.x)) {
    grid_memory()[i] = from[i];
  }
  __syncthreads();
}

// As fragments_of() of a grid: a lane's run of a row is its part of both steps. A level is a bf16 number as whole
// numbers are there, and gets its sign. more: the lane's word from the step's bits on.
template <typename Kind>
__device__ inline void grid_fragments(const RawStep<Kind::kBits>& raw, uint32_t more, int half, uint32_t (&a)[2][4]) {
  constexpr uint32_t kPower = 254 - grid_shift(Kind::kWeight);
#pragma unroll
  for (int hi = 0; hi < 2; ++hi) {
    const GridRun run = grid_run_of(Kind::kWeight, word_of(raw.main[0], half), raw.extra.x, more, half, hi);
    const uint2 levels = grid_levels<Kind::kWeight>(grid_words<Kind>(), run);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // pairs of columns
      const uint32_t pair = __byte_perm(i < 2 ? levels.x : levels.y, 0, i % 2 == 0 ? 0x4140 : 0x4342);
      const uint32_t signs = run.signs >> 2 * i;
      const uint32_t minus = (signs & 1) << 15 | (signs & 2) << 30;
      a[i / 2][2 * (i % 2) + hi] = fma_pair(pair, kPower << 7 | kPower << 23, 0x80008000u) ^ minus;
    }
  }
}

// A lane's weights of half a step. raw_scales: where its words of the tile's record are; step: of the record.
template <typename Kind>
__device__ inline void unpack_half(const RawStep<Kind::kBits>& raw, const float4* raw_scales, int step, int half,
                                   uint32_t zero, uint32_t (&a)[2][4]) {
  if constexpr (Kind::kGrid) {
    uint32_t more = 0;
    if constexpr (Kind::kWord) more = reinterpret_cast<const RawScales*>(raw_scales)->second.y >> 8 * step;
    grid_fragments<Kind>(raw, more, half, a);
  } else {
    fragments_of<Kind>(raw, half, zero, a);
  }
}

}  // namespace headrace::kernels::cuda
