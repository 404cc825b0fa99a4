// Adds one step of 64 columns, and one record, to a warp's sums, for kernels/product/packed.cuh and packed_many.cuh.
#pragma once

#include "kernels/cuda/instructions.cuh"
#include "kernels/product/packed_fragments.cuh"

namespace headrace::kernels::cuda {

// A lane's sums: tiles of rows, tiles of weights, four elements of the tensor cores.
template <typename Shape>
using Sums = float[Shape::kRowTiles][Shape::kWeightTiles][4];

// sums += low and high times the product.
__device__ inline void add_scaled(float (&sums)[4], float low, float high, const float (&product)[4]) {
  sums[0] = fmaf(low, product[0], sums[0]);
  sums[1] = fmaf(low, product[1], sums[1]);
  sums[2] = fmaf(high, product[2], sums[2]);
  sums[3] = fmaf(high, product[3], sums[3]);
}

// A lane's x of two steps of the tensor cores, if a scale covers 16 columns.
__device__ inline uint4 narrow_x(const unsigned char* from) {
  const uint2 b0 = *reinterpret_cast<const uint2*>(from), b1 = *reinterpret_cast<const uint2*>(from + 32);
  return make_uint4(b0.x, b0.y, b1.x, b1.y);
}

// Where a scale covers 16 columns in the order that others have for 32: the first 16 are those of lanes t = 0 and 1,
// which have zeros in place of the others' weights, and the other way about.
__device__ inline void add_two_groups(const uint32_t (&a)[2][4], const float4& scale, const uint4& b,
                                      float (&sums)[4]) {
  const bool first = threadIdx.x % 4 < 2;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float product[4] = {};
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      uint32_t own[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) own[i] = first == (part == 0) ? a[u][i] : 0;
      multiply(product, own, u == 0 ? b.x : b.z, u == 0 ? b.y : b.w, __nv_bfloat16{});
    }
    add_scaled(sums, part == 0 ? scale.x : scale.z, part == 0 ? scale.y : scale.w, product);
  }
}

// Adds half a step: the weights `a` times x, which the lane reads at `x`, times their scales.
template <typename Shape, typename Kind>
__device__ inline void add_half(const uint32_t (&a)[Shape::kWeightTiles][2][4],
                                const float4 (&scale)[Shape::kWeightTiles], int half, const unsigned char* x,
                                Sums<Shape>& sums) {
#pragma unroll
  for (int i = 0; i < Shape::kRowTiles; ++i) {
    const unsigned char* const from = x + i * 1024;
    uint4 b;
    if constexpr (Kind::kNarrow) {
      b = narrow_x(from);
    } else {
      b = *reinterpret_cast<const uint4*>(from);
    }
#pragma unroll
    for (int m = 0; m < Shape::kWeightTiles; ++m) {
      if constexpr (Kind::kBits == 16) {
        multiply(sums[i][m], a[m][0], b.x, b.y, __nv_bfloat16{});
        multiply(sums[i][m], a[m][1], b.z, b.w, __nv_bfloat16{});
      } else if constexpr (Kind::kNarrow) {
        float first_product[4] = {}, second_product[4] = {};
        multiply(first_product, a[m][0], b.x, b.y, __nv_bfloat16{});
        multiply(second_product, a[m][1], b.z, b.w, __nv_bfloat16{});
        add_scaled(sums[i][m], scale[m].x, scale[m].y, first_product);
        add_scaled(sums[i][m], scale[m].z, scale[m].w, second_product);
      } else if constexpr (Kind::kTwoScales) {
        add_two_groups(a[m], scale[m], b, sums[i][m]);
      } else {
        float group[4] = {};
        multiply(group, a[m][0], b.x, b.y, __nv_bfloat16{});
        multiply(group, a[m][1], b.z, b.w, __nv_bfloat16{});
        add_scaled(sums[i][m], half == 0 ? scale[m].x : scale[m].z, half == 0 ? scale[m].y : scale[m].w, group);
      }
    }
  }
}

// Adds a record's minima times the sums of x, which the lane reads at `x`.
template <typename Shape, ScaleKind kScales>
__device__ inline void add_minima(const float4* raw, const uint32_t* x, int rows, Sums<Shape>& sums) {
  Minima minima[Shape::kWeightTiles];
#pragma unroll
  for (int m = 0; m < Shape::kWeightTiles; ++m) {
    const float4 words = raw[m * (Shape::kRawApart / 16)];
    minima[m] = minima_of<kScales>(reinterpret_cast<const RawScales&>(words));
  }
#pragma unroll
  for (int i = 0; i < Shape::kRowTiles; ++i) {
    uint2 b;
    if constexpr (Shape::kWhole) {
      b = make_uint2(x[0], x[rows]);
    } else {
      b = *reinterpret_cast<const uint2*>(x + i * 64);
    }
#pragma unroll
    for (int m = 0; m < Shape::kWeightTiles; ++m) {
      float product[4] = {};
      multiply(product, minima[m].a[0], b.x, b.y, __nv_bfloat16{});
      if (kScales == ScaleKind::kHalfMin) multiply(product, minima[m].a[1], b.x, b.y, __nv_bfloat16{});
      add_scaled(sums[i][m], minima[m].low, minima[m].high, product);
    }
  }
}

// Adds the minima of half a step times x, for kFourBits: whole numbers, as weights are. raw: as load_scales() left them
// for this lane; group: its index in the record.
template <typename Shape>
__device__ inline void add_narrow_minima(const float4* raw, int group, const unsigned char* x, Sums<Shape>& sums) {
#pragma unroll
  for (int m = 0; m < Shape::kWeightTiles; ++m) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float4 words = raw[m * (Shape::kRawApart / 16) + group / 2 - lane % 4];
    const auto& scales = reinterpret_cast<const RawScales&>(words);
    uint32_t a[2][4];
#pragma unroll
    for (int u = 0; u < 2; ++u) narrow_minima(group % 2 == 0 ? scales.first.x : scales.first.y, u == 1, a[u]);
    const float low = halves_of(scales.second.x).y * -4.0f, high = halves_of(scales.second.y).y * -4.0f;
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
      const uint4 b = narrow_x(x + i * 1024);
      float product[4] = {};
      multiply(product, a[0], b.x, b.y, __nv_bfloat16{});
      multiply(product, a[1], b.z, b.w, __nv_bfloat16{});
      add_scaled(sums[i][m], low, high, product);
    }
  }
}

}  // namespace headrace::kernels::cuda
