// The end of kernels/product/packed.cuh: adds the sums of the runs, finishes the outputs and writes them.
#pragma once

#include "kernels/cuda/chunk.cuh"
#include "kernels/elementwise/silu.cuh"
#include "kernels/product/packed.h"
#include "kernels/product/packed_steps.cuh"

namespace headrace::kernels::cuda {

// Adds the runs' sums in order, in the first run's warps. Returns false in the others.
template <typename Shape>
__device__ inline bool add_parts(unsigned char* shared, Sums<Shape>& sums) {
  if constexpr (Shape::kParts == 1) return true;
  constexpr int kApart = Shape::kWarps * 32, kRun = Shape::kRowTiles * Shape::kWeightTiles * 4 * kApart;  // in floats
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int run = warp / Shape::kWarps;
  float* const first = reinterpret_cast<float*>(shared) + warp % Shape::kWarps * 32 + lane;
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
      for (int m = 0; m < Shape::kWeightTiles; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) body(sums[i][m][e], ((i * Shape::kWeightTiles + m) * 4 + e) * kApart);
      }
    }
  };
  __syncthreads();  // x and scales have been read
  if (run > 0) each([&](float& sum, int place) { first[(run - 1) * kRun + place] = sum; });
  __syncthreads();
  if (run > 0) return false;
#pragma unroll 1
  for (int other = 0; other + 1 < Shape::kParts; ++other) {
    each([&](float& sum, int place) { sum += first[other * kRun + place]; });
  }
  return true;
}

// Writes a lane's sums to the output: rows 8 i + 2 t + e of the block and columns 16 m + 8 hi + g of the warp.
template <typename Shape, typename Out>
__device__ inline void store_as(const PackedProduct& p, int row, int col, int cols_left, Sums<Shape>& sums) {
  const int64_t element = int64_t{row} * p.out_cols + col;
  Out* const out = static_cast<Out*>(p.out) + element;
  const Out* const residual = static_cast<const Out*>(p.residual) + element;
  const auto* const bias = static_cast<const __nv_bfloat16*>(p.bias) + col;
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (row + i * 8 + e >= p.rows) continue;
        const int64_t line = int64_t{i * 8 + e} * p.out_cols;
#pragma unroll
        for (int m = 0; m < Shape::kWeightTiles; ++m) {
#pragma unroll
          for (int hi = 0; hi < 2; ++hi) {
            const int to = m * kTileRows + hi * 8;
            if (to < cols_left) body(sums[i][m][2 * hi + e], line + to, to);
          }
        }
      }
    }
  };
  const auto value = [](Out stored) {
    if constexpr (sizeof(Out) == 4) {
      return stored;
    } else {
      return __bfloat162float(stored);
    }
  };
  if (p.bias != nullptr) each([&](float& sum, int64_t, int to) { sum += __bfloat162float(bias[to]); });
  if (p.residual != nullptr) each([&](float& sum, int64_t at, int) { sum += value(residual[at]); });
  each([&](float& sum, int64_t at, int) {
    if constexpr (sizeof(Out) == 4) {
      out[at] = sum;
    } else {
      out[at] = __float2bfloat16_rn(sum);
    }
  });
}
// row_tile: of the block.
template <typename Shape>
__device__ inline void store_sums(const PackedProduct& p, const PackedPart& part, int first_tile, int row_tile,
                                  Sums<Shape>& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), row = row_tile * Shape::kRowTiles * 8 + lane % 4 * 2;
  const int in_part = first_tile * kTileRows + lane / 4, col = part.first_col + in_part;
  if (p.out_f32) {
    store_as<Shape, float>(p, row, col, part.rows - in_part, sums);
  } else {
    store_as<Shape, __nv_bfloat16>(p, row, col, part.rows - in_part, sums);
  }
}

struct WarpTiles {
  int part, first;
};
// Read again after the sums, which need the registers: hence the volatile read.
template <typename Shape>
__device__ inline WarpTiles tiles_of_warp(const PackedProduct& p) {
  int block, index = 0, warp, warps = Shape::kWarps;
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(block));
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(warp));
  warp = warp / 32 % Shape::kWarps;
  if (Shape::kGates && p.gated) {
    warps /= 2;
    index = warp / warps;
    warp %= warps;
  } else {
    while (index + 1 < p.part_count && block >= p.parts[index + 1].first_block) ++index;
  }
  block -= p.parts[index].first_block;
  if (Shape::kRotates && p.rope.head_dim > 0) {
    const int tiles = p.rope.head_dim / 2 / kTileRows,
              blocks = tiles / Shape::kWeightTiles;  // of half a head; of a head
    return {index, (block / blocks * 2 + warp) * tiles + block % blocks * Shape::kWeightTiles};
  }
  return {index, (block * warps + warp) * Shape::kWeightTiles};
}

// Adds a lane's part of the bias of a gated product to its sums.
template <typename Shape>
__device__ inline void add_bias(const PackedProduct& p, const void* bias, Sums<Shape>& sums) {
  const WarpTiles tiles = tiles_of_warp<Shape>(p);
  const PackedPart& part = p.parts[tiles.part];
  const int in_part = tiles.first * kTileRows + static_cast<int>(threadIdx.x % 32) / 4;
#pragma unroll
  for (int m = 0; m < Shape::kWeightTiles; ++m) {
#pragma unroll
    for (int hi = 0; hi < 2; ++hi) {
      const int row = in_part + m * kTileRows + hi * 8;
      if (row >= part.rows) continue;
      const float value = __bfloat162float(static_cast<const __nv_bfloat16*>(bias)[tiles.part * part.rows + row]);
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
        sums[i][m][2 * hi] += value;
        sums[i][m][2 * hi + 1] += value;
      }
    }
  }
}

// Finishes a gated product: the second half of the warps passes up to the first half, which has gate of the same
// outputs and computes activation(gate) * up. Both are rounded first, as if they had been written. All threads call it;
// it returns true in the warps that have the result. `bias`: of gate and up, or null. `mine`: the thread has sums.
template <typename Shape>
__device__ inline bool apply_gate(const PackedProduct& p, const void* bias, unsigned char* shared, bool mine,
                                  Sums<Shape>& sums) {
  constexpr int kHalf = Shape::kWarps / 2;
  static_assert(Shape::kWarps % 2 == 0 &&
                Shape::kRowTiles * Shape::kWeightTiles * 4 * kHalf * 32 * 4 <= Shape::kSharedBytes);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32) % Shape::kWarps;
  float* const ups = reinterpret_cast<float*>(shared) + warp % kHalf * 32 + lane;
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
      for (int m = 0; m < Shape::kWeightTiles; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[i][m][e] = __bfloat162float(__float2bfloat16_rn(sums[i][m][e]));
          body(sums[i][m][e], ups[((i * Shape::kWeightTiles + m) * 4 + e) * (kHalf * 32)]);
        }
      }
    }
  };
  if (mine && bias != nullptr) add_bias<Shape>(p, bias, sums);
  __syncthreads();  // shared memory may be overwritten
  if (mine && warp >= kHalf) each([](float& sum, float& up) { up = sum; });
  __syncthreads();
  if (!mine || warp >= kHalf) return false;
  switch (p.activation) {
    case Activation::kSilu:
      each([](float& sum, float& up) { sum = silu_times(sum, up); });
      break;
    case Activation::kGelu:
      each([](float& sum, float& up) { sum = gelu_times(sum, up); });
      break;
    case Activation::kClampedSilu:
      each([](float& sum, float& up) { sum = clamped_times(sum, up); });
      break;
  }
  return true;
}

// Finishes a rotated product: a block's first warp has outputs of the first half of a head, and the second warp those
// half a head further. Rounds them, as if they had been written, and rotates them as rope() does. All threads call it;
// `mine`: the thread has sums.
template <typename Shape>
__device__ inline void store_rotated(const PackedProduct& p, const PackedPart& part, int first_tile,
                                     unsigned char* shared, bool mine, Sums<Shape>& sums) {
  const PackedRope& rope = p.rope;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32) % Shape::kWarps;
  const int g = lane / 4, t = lane % 4, half = rope.head_dim / 2;
  float* const own = reinterpret_cast<float*>(shared) + warp * 32 + lane;
  const float* const others = reinterpret_cast<float*>(shared) + (warp ^ 1) * 32 + lane;
  static_assert(Shape::kWarps == 2 && Shape::kRowTiles * Shape::kWeightTiles * 4 * 64 * 4 <= Shape::kSharedBytes);
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
      for (int m = 0; m < Shape::kWeightTiles; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {  // output g + 8 (e / 2), row 2 t + e % 2
          const int row = static_cast<int>(blockIdx.x) * Shape::kRowTiles * 8 + i * 8 + 2 * t + e % 2;
          const int col = part.first_col + (first_tile + m) * kTileRows + g + e / 2 * 8;
          if (row < p.rows) body(row, col, sums[i][m][e], ((i * Shape::kWeightTiles + m) * 4 + e) * 64);
        }
      }
    }
  };
  __syncthreads();  // shared memory may be overwritten
  if (mine) {
    each([&](int, int col, float& sum, int place) {
      if (p.bias != nullptr) sum += __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[col]);
      own[place] = sum = __bfloat162float(__float2bfloat16_rn(sum));
    });
  }
  __syncthreads();
  if (!mine) return;
  const int slot = (part.first_col + first_tile * kTileRows) / rope.head_dim;  // of a head among q's, k's and v's
  const int64_t first = rope.out_first != nullptr ? *rope.out_first : 0;
  each([&](int row, int col, float& sum, int place) {
    const int d = col - slot * rope.head_dim, kv_head = (slot - rope.heads) % rope.kv_heads;
    const int64_t to = (first + row) * rope.out_row_stride + kv_head * rope.out_head_stride + d;
    if (slot >= rope.heads + rope.kv_heads) return store_one(rope.v_type, rope.v_out, to, sum);
    const int position = rope.positions[row];
    device_check(position >= 0 && position < rope.table_rows);
    const float* const cos_sin = rope.cos_sin + (slot < rope.heads ? rope.q_table : 0) +
                                 static_cast<int64_t>(position) * rope.head_dim + (d - warp * half);
    const float by_cos = __fmul_rn(sum, cos_sin[0]), by_sin = __fmul_rn(others[place], cos_sin[half]);
    const float turned = warp == 0 ? __fsub_rn(by_cos, by_sin) : __fadd_rn(by_cos, by_sin);
    if (slot >= rope.heads) return store_one(rope.k_type, rope.k_out, to, turned);
    static_cast<__nv_bfloat16*>(p.out)[static_cast<int64_t>(row) * p.n + col] = __float2bfloat16_rn(turned);
  });
}

}  // namespace headrace::kernels::cuda
