// The product's kernel: a block computes one tile of outputs after another; a ring of slabs of 64 columns in shared
// memory runs on from a tile to the next. Operands are in the tensor cores' order in memory (kernels/int8/layout.h), so
// that a lane reads its part of a fragment with one 16-byte access. An int32 sum is exact: tiles change no bit. Device
// code.
#pragma once

#include <cstdint>

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/int8/layout.h"
#include "kernels/int8/op.h"

namespace headrace::kernels::cuda {

struct TileCall {
  const int8_t *x, *w;
  const float *x_scales, *w_scales;
  const void *bias, *residual;
  void* out;
  DType type;
  bool aligned;  // chunks of bias, residual and out; w_scales
  float unrotate;
  int rows, n, padded, row_tiles, tiles;
  // Of groups: their tiles of rows, and how far apart their matrices and biases are, in bytes.
  const int2* listed;
  const int32_t* ends;
  int64_t w_apart;
  uint64_t bias_apart;
};

struct TileOut {
  void* data;
  DType type;
};
struct TileSizes {
  int64_t rows, n, k;
};
// A call without bias, residual and groups. Host code.
inline TileCall tile_call(const Int8Rows& x, const Int8Rows& weight, const TileOut& out, const TileSizes& sizes) {
  TileCall call{};
  call.x = x.values;
  call.w = weight.values;
  call.x_scales = x.scales;
  call.w_scales = weight.scales;
  call.out = out.data;
  call.type = out.type;
  call.aligned = chunks_aligned(out.data, out.type, sizes.n) && chunks_aligned(weight.scales, DType::kF32, sizes.n);
  call.unrotate = 1.0f / static_cast<float>(rotation_block(sizes.k));
  call.rows = static_cast<int>(sizes.rows);
  call.n = static_cast<int>(sizes.n);
  call.padded = static_cast<int>(padded_int8_cols(sizes.k));
  return call;
}

// A tile of outputs: the rows and columns where it begins, the row where its group ends, and the group.
struct TilePlace {
  int row, col, end, group;
};
// Columns follow each other first where there are groups, so that a matrix is read once.
template <typename Shape>
__device__ inline TilePlace tile_place(const TileCall& p, int tile) {
  if constexpr (Shape::kGroups) {
    const int across = (p.n + Shape::kCols - 1) / Shape::kCols;
    const int2 listed = p.listed[1 + tile / across];
    return {listed.y, tile % across * Shape::kCols, p.ends[listed.x], listed.x};
  } else {
    return {tile % p.row_tiles * Shape::kRows, tile / p.row_tiles * Shape::kCols, p.rows, 0};
  }
}
template <typename Shape>
__device__ inline int tile_count(const TileCall& p) {
  if constexpr (Shape::kGroups) return p.listed[0].x * ((p.n + Shape::kCols - 1) / Shape::kCols);
  return p.tiles;
}

// kRows x kCols outputs a block, kWarpRows x 64 a warp. kUnrolled: `padded` is a multiple of kStages slabs, and the
// ring's places are constants. kGroups: rows are in groups, each with its own matrix.
template <int kRows_, int kCols_, int kWarpRows_, int kMinBlocks_, bool kUnrolled_, bool kGroups_ = false>
struct TileShape {
  static constexpr int kRows = kRows_, kCols = kCols_, kWarpRows = kWarpRows_, kMinBlocks = kMinBlocks_;
  static constexpr bool kUnrolled = kUnrolled_, kGroups = kGroups_;
  static constexpr int kStages = 4, kSlab = 64, kSteps = kSlab / kFragmentCols, kWarpCols = 64;
  static constexpr int kRowWarps = kRows / kWarpRows, kThreads = kRowWarps * (kCols / kWarpCols) * 32;
  static constexpr int kSixteen = kSteps * kFragmentBytes;  // bytes of 16 rows in a slab
  static constexpr int kXBytes = kRows / 16 * kSixteen, kStageBytes = kXBytes + kCols / 16 * kSixteen;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kAtOnce = kThreads * 16 / kSixteen;  // groups of 16 rows that one copy of each thread covers
  static constexpr int kXCopies = kRows / 16 / kAtOnce, kWCopies = kCols / 16 / kAtOnce;
  static constexpr int kXParts = kWarpRows / 16, kWParts = kWarpCols / 16;  // fragments of a warp
  static_assert(kXCopies * kAtOnce * 16 == kRows && kWCopies * kAtOnce * 16 == kCols);
  static_assert(kRows <= kInt8RowPadding && kCols <= kInt8RowPadding && kRows >= kLeastTileRows &&
                kRows <= kMostTileRows);
  static_assert(kSharedBytes * kMinBlocks <= 99 * 1024);  // sm_86 and sm_89 have no more
};

// ---- Copies ---------------------------------------------------------------------------------------------------------

// A thread's copies: slab after slab of this block's tiles.
template <typename Shape>
class SlabCopies {
 public:
  __device__ SlabCopies(const TileCall& p, uint32_t shared)
      : p_(p),
        to_(shared + threadIdx.x * 16),
        tiles_(tile_count<Shape>(p)),
        tile_(static_cast<int>(blockIdx.x)),
        slabs_(p.padded / Shape::kSlab) {
    begin_tile();
  }
  // Copies the next slab, if there is one, to a place of the ring, and ends a group of copies.
  __device__ void copy_next(int place) {
    if (tile_ < tiles_) {
      const uint32_t to = to_ + static_cast<uint32_t>(place * Shape::kStageBytes);
      const int64_t apart = static_cast<int64_t>(p_.padded) * 16 * Shape::kAtOnce;
#pragma unroll
      for (int i = 0; i < Shape::kXCopies; ++i) copy_at<0, 0>(to + i * Shape::kThreads * 16, x_ + i * apart);
#pragma unroll
      for (int i = 0; i < Shape::kWCopies; ++i) {
        copy_at<0, 0>(to + Shape::kXBytes + i * Shape::kThreads * 16, w_ + i * apart);
      }
      x_ += Shape::kSixteen;
      w_ += Shape::kSixteen;
      if (++slab_ == slabs_) {
        slab_ = 0;
        tile_ += static_cast<int>(gridDim.x);
        begin_tile();
      }
    }
    commit_copies();
  }

 private:
  __device__ void begin_tile() {
    if (Shape::kGroups && tile_ >= tiles_) return;
    const TilePlace place = tile_place<Shape>(p_, tile_);
    const int64_t sixteen = static_cast<int64_t>(p_.padded) * 16;
    const int at = static_cast<int>(threadIdx.x) * 16;
    const int64_t in_tile = at / Shape::kSixteen * sixteen + at % Shape::kSixteen;
    x_ = p_.x + place.row / 16 * sixteen + in_tile;
    w_ = p_.w + place.col / 16 * sixteen + in_tile;
    if constexpr (Shape::kGroups) w_ += place.group * p_.w_apart;
  }

  const TileCall& p_;
  const uint32_t to_;
  const int tiles_;
  int tile_;
  const int slabs_;
  int slab_ = 0;
  const int8_t *x_, *w_;
};

// ---- Fragments ------------------------------------------------------------------------------------------------------

template <typename Shape>
struct Fragments {
  uint4 x[Shape::kXParts], w[Shape::kWParts];

  // x_at, w_at: this lane's, of the slab's first step.
  __device__ void load(uint32_t x_at, uint32_t w_at, int step) {
#pragma unroll
    for (int i = 0; i < Shape::kXParts; ++i) x[i] = load_words(x_at + i * Shape::kSixteen + step * kFragmentBytes);
#pragma unroll
    for (int i = 0; i < Shape::kWParts; ++i) w[i] = load_words(w_at + i * Shape::kSixteen + step * kFragmentBytes);
  }
};

template <typename Shape>
using TileSums = int[Shape::kXParts][2 * Shape::kWParts][4];

template <typename Shape>
__device__ void multiply_all(TileSums<Shape>& sums, const Fragments<Shape>& from) {
#pragma unroll
  for (int j = 0; j < Shape::kWParts; ++j) {
#pragma unroll
    for (int i = 0; i < Shape::kXParts; ++i) {
      const uint32_t x[4] = {from.x[i].x, from.x[i].y, from.x[i].z, from.x[i].w};
      multiply(sums[i][2 * j], x, from.w[j].x, from.w[j].y);
      multiply(sums[i][2 * j + 1], x, from.w[j].z, from.w[j].w);
    }
  }
}

// ---- Outputs --------------------------------------------------------------------------------------------------------

// A thread has eight neighbouring columns of each 32, from `col` on, of rows `row` and `row` + 1 of each 16.
template <typename T, typename Shape>
__device__ void write_tile(const TileCall& p, const TilePlace& place, const TileSums<Shape>& sums, int row, int col) {
  const float* const of_group = p.w_scales + (Shape::kGroups ? int64_t{place.group} * p.n : 0);
  const auto* const biases =
      reinterpret_cast<const T*>(static_cast<const char*>(p.bias) + (Shape::kGroups ? place.group * p.bias_apart : 0));
#pragma unroll
  for (int run = 0; run < Shape::kWarpCols / 32; ++run) {
    const int first = col + 32 * run, count = p.n - first;
    if (count <= 0) continue;
    float w_scales[kChunk], bias[kChunk];
    load_chunk(of_group + first, count, p.aligned, w_scales);
    if (p.bias != nullptr) load_chunk(biases + first, count, p.aligned, bias);
#pragma unroll
    for (int i = 0; i < Shape::kXParts; ++i) {
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const int at = row + 16 * i + low;
        if (at >= place.end) continue;
        const int64_t element = static_cast<int64_t>(at) * p.n + first;
        const float x_scale = p.x_scales[at];
        float y[kChunk];
#pragma unroll
        for (int j = 0; j < kChunk; ++j) {
          const float scale = __fmul_rn(__fmul_rn(x_scale, w_scales[j]), p.unrotate);
          y[j] = __fmul_rn(__int2float_rn(sums[i][4 * run + j / 2][2 * low + j % 2]), scale);
          if (p.bias != nullptr) y[j] = __fadd_rn(y[j], bias[j]);
        }
        if (p.residual != nullptr) {
          float added[kChunk];
          load_chunk(static_cast<const T*>(p.residual) + element, count, p.aligned, added);
#pragma unroll
          for (int j = 0; j < kChunk; ++j) y[j] = __fadd_rn(y[j], added[j]);
        }
        store_chunk(static_cast<T*>(p.out) + element, count, p.aligned, y);
      }
    }
  }
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

// Grid: as many blocks as run at once; block b has tiles b, b + gridDim.x, …
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMinBlocks)
    int8_product_kernel(const __grid_constant__ TileCall p) {
  extern __shared__ char memory[];
  constexpr int kStages = Shape::kStages, kSteps = Shape::kSteps, kUnroll = Shape::kUnrolled ? kStages : 1;
  const uint32_t shared = shared_address(memory);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warp_row = warp % Shape::kRowWarps, warp_col = warp / Shape::kRowWarps;
  const uint32_t x_at = shared + warp_row * Shape::kXParts * Shape::kSixteen + lane * 16;
  const uint32_t w_at = shared + Shape::kXBytes + warp_col * Shape::kWParts * Shape::kSixteen + lane * 16;
  SlabCopies<Shape> copies(p, shared);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copies.copy_next(i);
  Fragments<Shape> fragments[2];
  wait_copies<kStages - 2>();
  __syncthreads();
  fragments[0].load(x_at, w_at, 0);
  const int slabs = p.padded / Shape::kSlab;
  int place = 0;  // of the slab that is multiplied
  const int tiles = tile_count<Shape>(p);
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    TileSums<Shape> sums = {};
#pragma unroll 1
    for (int slab = 0; slab < slabs; slab += kUnroll) {
#pragma unroll
      for (int turn = 0; turn < kUnroll; ++turn) {
        const int now = Shape::kUnrolled ? turn : place, next = now + 1 == kStages ? 0 : now + 1;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          if (step + 1 < kSteps) {
            fragments[(step + 1) % 2].load(x_at + now * Shape::kStageBytes, w_at + now * Shape::kStageBytes, step + 1);
          } else {  // the next slab has arrived, and all warps have read the one before this
            wait_copies<kStages - 2>();
            __syncthreads();
            fragments[0].load(x_at + next * Shape::kStageBytes, w_at + next * Shape::kStageBytes, 0);
          }
          if (step == 0) copies.copy_next(now == 0 ? kStages - 1 : now - 1);
          multiply_all<Shape>(sums, fragments[step % 2]);
        }
        if (!Shape::kUnrolled) place = next;
      }
    }
    const TilePlace own = tile_place<Shape>(p, tile);
    const int row = own.row + warp_row * Shape::kWarpRows + lane / 4 * 2;
    const int col = own.col + warp_col * Shape::kWarpCols + lane % 4 * kChunk;
    if (p.type == DType::kF32) {
      write_tile<float, Shape>(p, own, sums, row, col);
    } else if (p.type == DType::kF16) {
      write_tile<__half, Shape>(p, own, sums, row, col);
    } else {
      write_tile<__nv_bfloat16, Shape>(p, own, sums, row, col);
    }
  }
  wait_copies<0>();
}

}  // namespace headrace::kernels::cuda
