// Weights are operand A of the tensor cores (16 outputs of the matrix), rows of x are operand B (8 rows a column tile).
// A warp multiplies kWeightTiles tiles of weights by kRowTiles tiles of rows over one of the kParts runs of k. Weights
// go straight to registers, kDepth steps ahead, since each is used by one lane alone; x goes through shared memory in
// the order of the fragments, kStages steps of 64 columns in turn.
//
// Columns are permuted within each 32, alike in both operands: lane 4 g + t has columns 8 t to 8 t + 7, four for each
// of two steps of the tensor cores, so that a lane reads its part of x in one access. If a scale covers 16 columns, the
// lane has columns 4 t to 4 t + 3 of each 16, which are a step.
#pragma once

#include <algorithm>

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/product/packed.h"
#include "kernels/product/packed_fragments.cuh"
#include "kernels/product/packed_grids.cuh"
#include "kernels/product/packed_outputs.cuh"
#include "kernels/product/packed_steps.cuh"
#include "kernels/product/packed_x.cuh"

namespace headrace::kernels::cuda {

// kStages 0: all of x is in shared memory from the start, so warps need not synchronize at every step. Only such shapes
// normalise x.
template <int kRowTiles_, int kWeightTiles_, int kWarps_, int kParts_, int kStages_, int kMinBlocks_>
struct PackedShape {
  static constexpr bool kWhole = kStages_ == 0;
  static constexpr int kRowTiles = kRowTiles_, kWeightTiles = kWeightTiles_;
  static constexpr int kWarps = kWarps_;  // a part of k
  static constexpr int kParts = kParts_, kStages = kStages_, kMinBlocks = kMinBlocks_;
  static constexpr int kThreads = 32 * kWarps * kParts;
  static constexpr bool kRotates = kWhole && kParts > 1, kGates = kWhole && kParts == 1;
  static constexpr bool kNormalises = kWhole;
  static constexpr bool kGathers = false;  // whether rows of x are found by PackedProduct::from
  static constexpr int kStageBytes = kRowTiles * 8 * kStepCols * 2;
  // A warp's tile: scales, groups of a record x row pairs; then the data that its lanes read for the minima.
  static constexpr int kScaleBytes = 8 * 8 * 16 + 32 * 16, kRawApart = kScaleBytes;
  static constexpr int kSumsBytes = kWhole ? 0 : kRowTiles * 8 * 32;  // of a record: sums of x
  static_assert(kStages <= kStepsARecord);
  static constexpr int kXBytes = kParts * (kStages * kStageBytes + kSumsBytes);
  static constexpr int kSumBytes = (kParts - 1) * kRowTiles * kWeightTiles * 4 * kWarps * 32 * 4;
  static constexpr int kScalesBytes = kWarps * kParts * kWeightTiles * kScaleBytes;
  static constexpr int kUsedBytes = kXBytes + kScalesBytes;
  static constexpr int kSharedBytes = kUsedBytes > kSumBytes ? kUsedBytes : kSumBytes;
  static_assert(kSharedBytes <= 99 * 1024);  // sm_86 and sm_89 have no more for a block
};

template <typename Shape>
HEADRACE_BOTH inline int x_bytes(const PackedProduct& p) {
  return Shape::kWhole ? whole_x_bytes(p) + whole_sums_bytes(p) : Shape::kXBytes;
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

// Computes the sums of one run of k. first_tile: the warp's.
template <typename Shape, typename Kind>
__device__ inline void sum_part(const PackedProduct& p, const PackedPart& part, int first_tile, unsigned char* shared,
                                Sums<Shape>& sums) {
  constexpr int kBits = Kind::kBits;
  constexpr ScaleKind kScales = Kind::kScales;
  constexpr int kTiles = Shape::kWeightTiles, kStages = Shape::kStages;
  constexpr int kDepth = kBits == 16 ? 1 : kBits == 8 ? 2 : 4;  // steps of weights ahead
  constexpr bool kMinima = has_minima(kScales), kNarrowMinima = kScales == ScaleKind::kFourBits;
  static_assert(kStepsARecord % kDepth == 0);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int run = warp / Shape::kWarps;
  const PackedKind kind = packed_kind(part.type);
  const TilePlanes planes = tile_planes(kind, p.k);
  const int steps = (p.k + kStepCols - 1) / kStepCols, records = (p.k + kRecordCols - 1) / kRecordCols;
  const int record_begin = records * run / Shape::kParts, record_end = records * (run + 1) / Shape::kParts;
  // Sums whole records: columns beyond the matrix are multiplied by zeros of x.
  const int step_end = record_end * kStepsARecord, load_end = kBits == 16 ? step_end : min(steps, step_end);
  const uint64_t policy = weight_policy(gridDim.x == 1);
  const int last_tile = (part.rows + kTileRows - 1) / kTileRows - 1;
  const uint32_t zero = pair_of_value(static_cast<float>(kind.zero) * (-1.0f / 64.0f));

  unsigned char* const x_shared = shared + run * kStages * Shape::kStageBytes;
  auto* const x_sums = reinterpret_cast<uint32_t*>(
      shared +
      (Shape::kWhole ? whole_x_bytes(p) : Shape::kParts * kStages * Shape::kStageBytes + run * Shape::kSumsBytes));
  const int thread = static_cast<int>(threadIdx.x) - run * Shape::kWarps * 32;  // of the run
  if constexpr (Kind::kGrid) copy_grid<Kind>();
  const XSource<Shape> x(p, thread, x_shared);
  auto* const scales = reinterpret_cast<float4*>(shared + x_bytes<Shape>(p) + warp * kTiles * Shape::kScaleBytes);

  // At the run's first step and record, then further on with them. Packed tiles of a warp are as far apart in memory as
  // they are large; the last ones may be one and the same.
  constexpr int kSources = kBits == 16 ? kTiles : 1;
  TileSource<kBits> sources[kSources];
#pragma unroll
  for (int m = 0; m < kSources; ++m) {
    sources[m] = TileSource<kBits>(part, kind, planes, min(first_tile + m, last_tile), p.k, lane);
    sources[m].advance(record_begin * kStepsARecord);
    sources[m].scales += static_cast<int64_t>(record_begin) * record_bytes(kScales);
  }
  const int64_t tile_bytes = kTiles > 1 && first_tile < last_tile ? planes.bytes : 0;
  static_assert(kTiles <= 2);
  const auto load_tile = [&](int m, int step, RawStep<kBits>& to) {
    if constexpr (kBits == 16) return sources[m].load(step, policy, to);
    TileSource<kBits> tile = sources[0];
    if (m > 0) tile.main += tile_bytes;
    if (m > 0) tile.extra += tile_bytes;
    tile.load(step, policy, to);
  };

  RawStep<kBits> raw[kTiles][kDepth] = {};
  RawScales raw_scales[kTiles];
  constexpr int kTileScales = Shape::kScaleBytes / 16;
  const auto fetch_scales = [&] {  // of the next record
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      raw_scales[m] = load_scales<kScales>(sources[0].scales + (m > 0 ? tile_bytes : 0), lane, policy);
    }
    sources[0].scales += record_bytes(kScales);
  };
  if (record_begin < record_end) {
    if constexpr (kBits != 16) fetch_scales();
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        if (record_begin * kStepsARecord + j < load_end) load_tile(m, j, raw[m][j]);
      }
    }
  }
  if constexpr (Shape::kWhole) {
    if (Shape::kNormalises && p.norm != nullptr) {
      normalise_rows<Shape>(p, shared);
      if constexpr (kMinima) {
        sum_x(p, 0, records * 8, warp, Shape::kWarps * Shape::kParts, shared, x_sums);
        __syncthreads();
      }
    } else {
      copy_rows<Shape>(p, record_begin * kStepsARecord, step_end, shared);
      wait_copies<0>();
      barrier_of<Shape::kParts, Shape::kWarps * 32>(run);
      if constexpr (kMinima) {
        sum_x(p, record_begin * 8, record_end * 8, warp % Shape::kWarps, Shape::kWarps, shared, x_sums);
        barrier_of<Shape::kParts, Shape::kWarps * 32>(run);
      }
    }
  } else {
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      const int step = record_begin * kStepsARecord + s;
      if (step < step_end) x.copy(p, step, s * Shape::kStageBytes);
      commit_copies();
    }
  }
  // The lane's address of a record's sums of x.
  const uint32_t* lane_sums =
      x_sums + (Shape::kWhole ? (record_begin * 8 + lane % 4 * 2) * p.rows + min(lane / 4, p.rows - 1) : lane * 2);
  int stage = 0;
  const unsigned char* x_whole = nullptr;
  if constexpr (Shape::kWhole) {
    x_whole = x_shared + (record_begin * kStepsARecord * 2 * p.rows + min(lane / 4, p.rows - 1)) * 64;
  }
#pragma unroll 1
  for (int first = record_begin * kStepsARecord; first < step_end; first += kStepsARecord) {
#pragma unroll
    for (int j = 0; j < kStepsARecord; ++j) {
      const int step = first + j;
      // The lane's address of x, and the distance of the two halves.
      const unsigned char* x_lane;
      int x_half;
      constexpr int kLaneBytes = Kind::kNarrow ? 8 : 16;
      if constexpr (Shape::kWhole) {
        x_half = p.rows * 64;
        x_lane = x_whole + lane % 4 * kLaneBytes;
        x_whole += 2 * x_half;
      } else {
        wait_copies<kStages - 2>();
        barrier_of<Shape::kParts, Shape::kWarps * 32>(run);
        if (step + kStages - 1 < step_end)
          x.copy(p, step + kStages - 1, (stage == 0 ? kStages - 1 : stage - 1) * Shape::kStageBytes);
        // They are read at the end of the record. Those before have been read.
        if (kMinima && (j + kStages) % kStepsARecord == 0 && step + kStages - 1 < step_end)
          x.copy_sums(p, (step + kStages - 1) / kStepsARecord, thread, x_sums);
        commit_copies();
        x_lane = x_shared + stage * Shape::kStageBytes + lane / 4 * 64 + lane % 4 * kLaneBytes;
        x_half = 512 + ((lane ^ 4) - lane) * 16;
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      if (kBits != 16 && j == 0) {
        __syncwarp();
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          stage_scales<kScales>(raw_scales[m], lane, scales + m * kTileScales);
          if constexpr (kMinima || kNarrowMinima || Kind::kWord) {
            scales[m * kTileScales + 64 + lane] = *reinterpret_cast<const float4*>(&raw_scales[m]);
          }
        }
        __syncwarp();
        if (step + kStepsARecord < step_end) fetch_scales();
      }
      float4 scale[kTiles] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[kTiles][2][4];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          if (Kind::kTwoScales || (kBits != 16 && half == 0)) {
            scale[m] = scales[m * kTileScales + scale_slot(2 * j + (Kind::kTwoScales ? half : 0), lane / 4)];
          }
          unpack_half<Kind>(raw[m][j % kDepth], scales + m * kTileScales + 64 + lane, j, half, zero, a[m]);
          if (half == 1 && step + kDepth < load_end) load_tile(m, j + kDepth, raw[m][j % kDepth]);
        }
        add_half<Shape, Kind>(a, scale, half, x_lane + half * x_half, sums);
        if constexpr (kNarrowMinima) {
          add_narrow_minima<Shape>(scales + 64 + lane, 2 * j + half, x_lane + half * x_half, sums);
        }
      }
      if (kMinima && j == kStepsARecord - 1) {
        add_minima<Shape, kScales>(scales + 64 + lane, lane_sums, p.rows, sums);
        if constexpr (Shape::kWhole) lane_sums += 8 * p.rows;
      }
    }
#pragma unroll
    for (int m = 0; m < kSources; ++m) sources[m].advance(kStepsARecord);
  }
  if constexpr (!Shape::kWhole) wait_copies<0>();
}

// Grid: tiles of rows x blocks of outputs, part after part. The parts' types differ, so a block looks up its own. A
// block of a gated product has the same outputs of both parts; a block of a rotated one has outputs half a head apart.
template <typename Shape, typename Kinds>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMinBlocks)
    packed_product_kernel(const __grid_constant__ PackedProduct p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const auto [index, first_tile] = tiles_of_warp<Shape>(p);
  const PackedPart& part = p.parts[index];
  Sums<Shape> sums = {};
  Kinds::with(part.type, [&](auto kind) { sum_part<Shape, decltype(kind)>(p, part, first_tile, shared, sums); });
  bool mine = add_parts<Shape>(shared, sums);
  const WarpTiles tiles = tiles_of_warp<Shape>(p);
  const PackedPart& of = p.parts[tiles.part];
  if constexpr (Shape::kRotates) {
    if (p.rope.head_dim > 0) return store_rotated<Shape>(p, of, tiles.first, shared, mine, sums);
  }
  if constexpr (Shape::kGates) {
    if (p.gated) mine = apply_gate<Shape>(p, nullptr, shared, mine, sums);
  }
  if (mine) store_sums<Shape>(p, of, tiles.first, static_cast<int>(blockIdx.x), sums);
}

// ---- Launches, by the number of rows --------------------------------------------------------------------------------

template <typename Shape, typename Kinds = UsualKinds>
void launch_packed(PackedProduct p, CudaStream& stream) {
  constexpr int kBlockRows = Shape::kWarps * Shape::kWeightTiles * kTileRows;
  const int64_t blocks = place_parts(p, kBlockRows);
  void (*const kernel)(PackedProduct) = packed_product_kernel<Shape, Kinds>;
  // Without this the driver leaves shared memory for fewer blocks than the registers allow.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  const int bytes = std::max(Shape::kSharedBytes, x_bytes<Shape>(p) + Shape::kScalesBytes);
  launch_on(stream, "packed_product", {ceil_div(p.rows, Shape::kRowTiles * 8), blocks, Shape::kThreads, bytes}, kernel,
            p);
}

}  // namespace headrace::kernels::cuda
