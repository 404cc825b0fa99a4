// Weights are operand A of the tensor cores (16 outputs of the matrix), rows of x are operand B (8 rows a column tile).
// A warp multiplies kWeightTiles tiles of weights by kRowTiles tiles of rows over one of the kParts runs of k. Weights
// go straight to registers, kDepth steps ahead, since each is used by one lane alone; x goes through shared memory in
// the order of the fragments, kStages steps of 64 columns in turn.
//
// Columns are permuted within each 32, alike in both operands: lane 4 g + t has columns 8 t to 8 t + 7, four for each
// of two steps of the tensor cores, so that a lane reads its part of x in one access.
#pragma once

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/product/packed.h"
#include "kernels/product/packed_fragments.cuh"

namespace headrace::kernels::cuda {

template <int kRowTiles_, int kWeightTiles_, int kWarps_, int kParts_, int kStages_, int kDepth_, int kMinBlocks_>
struct PackedShape {
  static constexpr int kRowTiles = kRowTiles_, kWeightTiles = kWeightTiles_;
  static constexpr int kWarps = kWarps_;  // a part of k
  static constexpr int kParts = kParts_, kStages = kStages_, kDepth = kDepth_, kMinBlocks = kMinBlocks_;
  static constexpr int kThreads = 32 * kWarps * kParts;
  static constexpr int kStageBytes = kRowTiles * 8 * kStepCols * 2;
  static constexpr int kScaleBytes = 8 * 8 * 16;  // of a warp's tile: groups of a record x row pairs
  static constexpr int kXBytes = kParts * kStages * kStageBytes;
  static constexpr int kSumBytes = kParts > 1 ? kRowTiles* kWeightTiles * 4 * kWarps * 32 * 4 : 0;
  static constexpr int kUsedBytes = kXBytes + kWarps * kParts * kWeightTiles * kScaleBytes;
  static constexpr int kSharedBytes = kUsedBytes > kSumBytes ? kUsedBytes : kSumBytes;
  static_assert(kSharedBytes <= 99 * 1024);  // sm_86 and sm_89 have no more for a block
};

// ---- x --------------------------------------------------------------------------------------------------------------

// Copies steps of x to shared memory, in the order of the fragments: 16 bytes of row r and columns 8 q are read by lane
// 4 (r % 8) + q % 4. The two halves of a step have their rows in another order, for the banks.
template <typename Shape>
struct XSource {
  static constexpr int kChunks = kStepCols / 8;                     // of a row
  static constexpr int kRowsAtOnce = Shape::kWarps * 32 / kChunks;  // of a part's threads
  static_assert(kRowsAtOnce % 8 == 0);  // so that a thread's rows have one place in their tiles of 8
  const char* from;
  uint32_t to;
  int64_t row_bytes;
  int row, rows;  // of this thread's first copy; in the block
  int col, k;

  __device__ XSource(const PackedProduct& p, int thread, const unsigned char* shared) {
    const int chunk = thread % kChunks, half = chunk / 4, first = static_cast<int>(blockIdx.x) * Shape::kRowTiles * 8;
    row = thread / kChunks;
    rows = min(p.rows - first, Shape::kRowTiles * 8);
    row_bytes = static_cast<int64_t>(p.k) * 2;
    col = chunk * 8;
    k = p.k;
    from = static_cast<const char*>(p.x) + (first + row) * row_bytes + col * 2;
    to = shared_address(shared) + (row / 8 * 2 + half) * 512u + (((row % 8) ^ half) * 4 + chunk % 4) * 16u;
  }

  // `stage`: in bytes. Columns beyond k are zeros; rows beyond the last are left as they are, for no output sees them.
  __device__ void copy(int step, uint32_t stage) const {
    const int bytes = step * kStepCols + col < k ? 16 : 0;
    const char* const source = bytes > 0 ? from + step * (kStepCols * 2) : from;
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 8; i += kRowsAtOnce) {
      if (row + i < rows) copy_async(to + stage + i / 8 * 1024u, source + i * row_bytes, bytes);
    }
  }
};

// Waits for the warps that share a run's x. The ids are constants, because an id in a register reserves all sixteen
// barriers of a block.
template <int kParts, int kThreads>
__device__ inline void barrier_of(int run) {
  static_assert(kParts == 1 || kParts == 4);
  if constexpr (kParts == 1) {
    __syncthreads();
  } else {
    if (run == 0) asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
    if (run == 1) asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
    if (run == 2) asm volatile("bar.sync 3, %0;" ::"n"(kThreads) : "memory");
    if (run == 3) asm volatile("bar.sync 4, %0;" ::"n"(kThreads) : "memory");
  }
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

template <typename Shape>
using Sums = float[Shape::kRowTiles][Shape::kWeightTiles][4];

// The sums of one run of k. first_tile: of the warp.
template <typename Shape, int kBits>
__device__ inline void sum_part(const PackedProduct& p, const PackedPart& part, int first_tile, unsigned char* shared,
                                Sums<Shape>& sums) {
  constexpr int kTiles = Shape::kWeightTiles, kStages = Shape::kStages;
  constexpr int kDepth = kBits == 16 ? 1 : kBits == 8 ? (Shape::kDepth + 1) / 2 : Shape::kDepth;
  static_assert(kStepsARecord % kDepth == 0);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int run = warp / Shape::kWarps;
  const PackedKind kind = packed_kind(part.type);
  const TilePlanes planes = tile_planes(kind, p.k);
  const int steps = (p.k + kStepCols - 1) / kStepCols, records = (p.k + kRecordCols - 1) / kRecordCols;
  const int record_begin = records * run / Shape::kParts, record_end = records * (run + 1) / Shape::kParts;
  const int step_end = min(steps, record_end * kStepsARecord);
  const uint64_t policy = weight_policy(gridDim.x == 1);
  const int last_tile = (part.rows + kTileRows - 1) / kTileRows - 1;

  unsigned char* const x_shared = shared + run * kStages * Shape::kStageBytes;
  auto* const scales = reinterpret_cast<float4*>(shared + Shape::kXBytes + warp * kTiles * Shape::kScaleBytes);
  const XSource<Shape> x(p, static_cast<int>(threadIdx.x) - run * Shape::kWarps * 32, x_shared);

  const TileSource<kBits> source(part, kind, planes, min(first_tile, last_tile), p.k, lane);
  // The tiles of a warp are as far apart in memory as they are large; the last ones may be one and the same.
  int64_t tile_bytes[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    tile_bytes[m] = (min(first_tile + m, last_tile) - min(first_tile, last_tile)) * planes.bytes;
  }
  const auto tile_source = [&](int m) {
    if constexpr (kBits == 16) return TileSource<kBits>(part, kind, planes, min(first_tile + m, last_tile), p.k, lane);
    TileSource<kBits> tile = source;
    tile.main += tile_bytes[m];
    tile.extra += tile_bytes[m];
    tile.scales += tile_bytes[m];
    return tile;
  };

  RawStep<kBits> raw[kTiles][kDepth];
  RawScales raw_scales[kTiles];
  const auto fetch_scales = [&](int record) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      raw_scales[m] = load_scales(tile_source(m).scales + static_cast<int64_t>(record) * record_bytes(kind.scales),
                                  kind.scales, lane, policy);
    }
  };
  if (record_begin < record_end) {
    if constexpr (kBits != 16) fetch_scales(record_begin);
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        if (record_begin * kStepsARecord + j < step_end)
          tile_source(m).load(record_begin * kStepsARecord + j, policy, raw[m][j]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    const int step = record_begin * kStepsARecord + s;
    if (step < step_end) x.copy(step, s * Shape::kStageBytes);
    commit_copies();
  }

  int stage = 0;
#pragma unroll 1
  for (int record = record_begin; record < record_end; ++record) {
    if constexpr (kBits != 16) {
      __syncwarp();
#pragma unroll
      for (int m = 0; m < kTiles; ++m) stage_scales<kBits>(raw_scales[m], kind, lane, scales + m * 64);
      __syncwarp();
      if (record + 1 < record_end) fetch_scales(record + 1);
    }
#pragma unroll(Shape::kDepth == 1 ? 1 : kStepsARecord)
    for (int j = 0; j < kStepsARecord; ++j) {
      const int step = record * kStepsARecord + j;
      if (step >= step_end) break;
      wait_copies<kStages - 2>();
      barrier_of<Shape::kParts, Shape::kWarps * 32>(run);
      if (step + kStages - 1 < step_end)
        x.copy(step + kStages - 1, (stage == 0 ? kStages - 1 : stage - 1) * Shape::kStageBytes);
      commit_copies();
      const unsigned char* const x_stage = x_shared + stage * Shape::kStageBytes;
      stage = stage + 1 == kStages ? 0 : stage + 1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[kTiles][2][4];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          float4 scale{};
          if constexpr (kBits != 16) scale = load_scale<kBits>(scales + m * 64, 2 * j + half, lane);
          fragments_of<kBits>(raw[m][j % kDepth], half, scale, a[m]);
          if (half == 1 && step + kDepth < step_end) tile_source(m).load(step + kDepth, policy, raw[m][j % kDepth]);
        }
#pragma unroll
        for (int i = 0; i < Shape::kRowTiles; ++i) {
          const uint4 b = *reinterpret_cast<const uint4*>(x_stage + (i * 2 + half) * 512 + (lane ^ (half * 4)) * 16);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) multiply(sums[i][m], a[m][0], b.x, b.y, __nv_bfloat16{});
#pragma unroll
          for (int m = 0; m < kTiles; ++m) multiply(sums[i][m], a[m][1], b.z, b.w, __nv_bfloat16{});
        }
      }
    }
  }
  wait_copies<0>();
}

// Adds the runs' sums in order; the last run's warps have them then. False for the others.
template <typename Shape>
__device__ inline bool add_parts(unsigned char* shared, Sums<Shape>& sums) {
  if constexpr (Shape::kParts == 1) return true;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int run = warp / Shape::kWarps;
  float* const mine = reinterpret_cast<float*>(shared) + warp % Shape::kWarps * 32 + lane;
  __syncthreads();  // x and scales have been read
#pragma unroll 1
  for (int turn = 0; turn < Shape::kParts; ++turn) {
    if (run == turn) {
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
        for (int m = 0; m < Shape::kWeightTiles; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float* const sum = mine + ((i * Shape::kWeightTiles + m) * 4 + e) * (Shape::kWarps * 32);
            if (turn > 0) sums[i][m][e] = *sum + sums[i][m][e];
            if (turn + 1 < Shape::kParts) *sum = sums[i][m][e];
          }
        }
      }
    }
    if (turn + 1 < Shape::kParts) __syncthreads();
  }
  return run + 1 == Shape::kParts;
}

template <typename Shape>
__device__ inline void store_sums(const PackedProduct& p, const PackedPart& part, int first_tile,
                                  const Sums<Shape>& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = static_cast<int>(blockIdx.x) * Shape::kRowTiles * 8 + i * 8 + 2 * t + e;
      if (row >= p.rows) continue;
#pragma unroll
      for (int m = 0; m < Shape::kWeightTiles; ++m) {
#pragma unroll
        for (int hi = 0; hi < 2; ++hi) {
          const int in_part = (first_tile + m) * kTileRows + g + 8 * hi;
          if (in_part >= part.rows) continue;
          const int col = part.first_col + in_part;
          const int64_t element = static_cast<int64_t>(row) * p.n + col;
          float sum = sums[i][m][2 * hi + e];
          if (p.bias != nullptr) sum += __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[col]);
          if (p.residual != nullptr) sum += __bfloat162float(static_cast<const __nv_bfloat16*>(p.residual)[element]);
          if (p.out_f32) {
            static_cast<float*>(p.out)[element] = sum;
          } else {
            static_cast<__nv_bfloat16*>(p.out)[element] = __float2bfloat16_rn(sum);
          }
        }
      }
    }
  }
}

// Grid: tiles of rows x blocks of outputs, part after part. The parts' types differ, so a block looks up its own.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMinBlocks)
    packed_product_kernel(const __grid_constant__ PackedProduct p) {
  extern __shared__ __align__(128) unsigned char shared[];
  int index = 0;
  while (index + 1 < p.part_count && static_cast<int>(blockIdx.y) >= p.parts[index + 1].first_block) ++index;
  const PackedPart& part = p.parts[index];
  const int block = static_cast<int>(blockIdx.y) - part.first_block;
  const int warp = static_cast<int>(threadIdx.x / 32) % Shape::kWarps;
  const int first_tile = (block * Shape::kWarps + warp) * Shape::kWeightTiles;
  Sums<Shape> sums = {};
  switch (packed_kind(part.type).bits) {
    case 4:
      sum_part<Shape, 4>(p, part, first_tile, shared, sums);
      break;
    case 5:
      sum_part<Shape, 5>(p, part, first_tile, shared, sums);
      break;
    case 6:
      sum_part<Shape, 6>(p, part, first_tile, shared, sums);
      break;
    case 8:
      sum_part<Shape, 8>(p, part, first_tile, shared, sums);
      break;
    default:
      sum_part<Shape, 16>(p, part, first_tile, shared, sums);
      break;
  }
  if (add_parts<Shape>(shared, sums)) store_sums<Shape>(p, part, first_tile, sums);
}

// ---- Launches, by the number of rows --------------------------------------------------------------------------------

template <typename Shape>
void launch_packed(PackedProduct p, CudaStream& stream) {
  constexpr int kBlockRows = Shape::kWarps * Shape::kWeightTiles * kTileRows;
  int64_t blocks = 0;
  for (int i = 0; i < p.part_count; ++i) {
    p.parts[i].first_block = static_cast<int>(blocks);
    blocks += ceil_div(p.parts[i].rows, kBlockRows);
  }
  void (*const kernel)(PackedProduct) = packed_product_kernel<Shape>;
  // Without this the driver leaves shared memory for fewer blocks than the registers allow.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  launch_on(stream, "packed_product",
            {ceil_div(p.rows, Shape::kRowTiles * 8), blocks, Shape::kThreads, Shape::kSharedBytes}, kernel, p);
}

}  // namespace headrace::kernels::cuda
