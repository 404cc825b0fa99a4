// Weights are operand A of the tensor cores (16 outputs of the matrix), rows of x are operand B (8 rows a column tile).
// A warp multiplies kWeightTiles tiles of weights by kRowTiles tiles of rows over one of the kParts runs of k. Weights
// go straight to registers, kDepth steps ahead, since each is used by one lane alone; x goes through shared memory in
// the order of the fragments, kStages steps of 64 columns in turn.
//
// Columns are permuted within each 32, alike in both operands: lane 4 g + t has columns 8 t to 8 t + 7, four for each
// of two steps of the tensor cores, so that a lane reads its part of x in one access.
#pragma once

#include <algorithm>

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/elementwise/norm_threads.cuh"
#include "kernels/elementwise/silu.cuh"
#include "kernels/product/packed.h"
#include "kernels/product/packed_fragments.cuh"

namespace headrace::kernels::cuda {

// kStages 0: all of x is in shared memory from the start, so that warps need not wait for each other at every step.
// Only such shapes normalise x on the way.
template <int kRowTiles_, int kWeightTiles_, int kWarps_, int kParts_, int kStages_, int kDepth_, int kMinBlocks_>
struct PackedShape {
  static constexpr bool kWhole = kStages_ == 0;
  static constexpr int kRowTiles = kRowTiles_, kWeightTiles = kWeightTiles_;
  static constexpr int kWarps = kWarps_;  // a part of k
  static constexpr int kParts = kParts_, kStages = kStages_, kDepth = kDepth_, kMinBlocks = kMinBlocks_;
  static constexpr int kThreads = 32 * kWarps * kParts;
  static constexpr int kStageBytes = kRowTiles * 8 * kStepCols * 2;
  static constexpr int kScaleBytes = 8 * 8 * 16;  // of a warp's tile: groups of a record x row pairs
  static constexpr int kXBytes = kParts * kStages * kStageBytes;
  static constexpr int kSumBytes = (kParts - 1) * kRowTiles * kWeightTiles * 4 * kWarps * 32 * 4;
  static constexpr int kScalesBytes = kWarps * kParts * kWeightTiles * kScaleBytes;
  static constexpr int kUsedBytes = kXBytes + kScalesBytes;
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
  static_assert(Shape::kWhole || kRowsAtOnce % 8 == 0);  // so that a thread's rows have one place in their tiles of 8
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

// The columns of x that a run reads, of all rows: 16 bytes of row r and columns 8 q are at ((q / 4) rows + r) 4 + q
// % 4.
template <typename Shape>
__device__ inline void copy_rows(const PackedProduct& p, int step_begin, int step_end, unsigned char* shared) {
  constexpr int kThreads = Shape::kWarps * 32;
  const int first = step_begin * (kStepCols / 8) + static_cast<int>(threadIdx.x) % kThreads;
  const int end = step_end * (kStepCols / 8), used = p.k / 8;
  const uint32_t to = shared_address(shared);
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
    const char* const from = static_cast<const char*>(p.x) + static_cast<int64_t>(row) * p.k * 2;
#pragma unroll 4
    for (int q = first; q < end; q += kThreads) {
      copy_async(to + ((q / 4 * p.rows + row) * 4 + q % 4) * 16u, q < used ? from + q * 16 : from, q < used ? 16 : 0);
    }
  }
  commit_copies();
}

// Eight elements of a row of x before its norm.
__device__ inline void load_unnormalised(const PackedProduct& p, int row, int chunk, float (&values)[kChunk]) {
  const int64_t element = static_cast<int64_t>(row) * p.k + chunk * kChunk;
  if (p.x_f32) {
    load_chunk(static_cast<const float*>(p.x) + element, kChunk, true, values);
  } else {
    load_chunk(static_cast<const __nv_bfloat16*>(p.x) + element, kChunk, true, values);
  }
}

// All columns of x, normalised as by rms_norm() and rounded, in the same places. By all threads of the block, with the
// sums' order of kernels/elementwise/norm_threads.cuh.
template <typename Shape>
__device__ inline void normalise_rows(const PackedProduct& p, unsigned char* to) {
  __shared__ float of_warp[kNormThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), threads = norm_threads(p.k);
  const int chunks = (p.k + kStepCols - 1) / kStepCols * (kStepCols / 8), used = p.k / 8;
  const auto* const weight = static_cast<const __nv_bfloat16*>(p.norm);
  for (int chunk = thread; chunk < used; chunk += Shape::kThreads) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(weight + chunk * kChunk));
  }
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
    for (int i = thread; i < threads; i += Shape::kThreads) {  // whole warps
      float squares = 0.0f;
      for (int chunk = i; chunk < used; chunk += threads) {
        float values[kChunk];
        load_unnormalised(p, row, chunk, values);
#pragma unroll
        for (int j = 0; j < kChunk; ++j) squares = fmaf(values[j], values[j], squares);
      }
      for (int apart = 16; apart > 0; apart /= 2) {
        squares = __fadd_rn(squares, __shfl_xor_sync(0xffffffff, squares, apart));
      }
      if (thread % 32 == 0) of_warp[i / 32] = squares;
    }
    __syncthreads();
    float sum = of_warp[0];
    for (int warp = 1; warp < threads / 32; ++warp) sum = __fadd_rn(sum, of_warp[warp]);
    const float mean = __fdiv_rn(sum, static_cast<float>(p.k));
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
    for (int chunk = thread; chunk < chunks; chunk += Shape::kThreads) {
      float values[kChunk] = {};
      if (chunk < used) {
        float weights[kChunk];
        load_unnormalised(p, row, chunk, values);
        load_chunk(weight + chunk * kChunk, kChunk, true, weights);
#pragma unroll
        for (int j = 0; j < kChunk; ++j) values[j] = __fmul_rn(__fmul_rn(values[j], scale), weights[j]);
      }
      auto* const place = reinterpret_cast<__nv_bfloat16*>(to + ((chunk / 4 * p.rows + row) * 4 + chunk % 4) * 16);
      store_chunk(place, kChunk, true, values);
    }
    __syncthreads();
  }
}

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

template <typename Shape>
HEADRACE_BOTH inline int x_bytes(const PackedProduct& p) {
  return Shape::kWhole ? whole_x_bytes(p) : Shape::kXBytes;
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
  auto* const scales = reinterpret_cast<float4*>(shared + x_bytes<Shape>(p) + warp * kTiles * Shape::kScaleBytes);
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
  if constexpr (Shape::kWhole) {
    if (p.norm != nullptr) {
      normalise_rows<Shape>(p, shared);
    } else {
      copy_rows<Shape>(p, record_begin * kStepsARecord, step_end, shared);
      wait_copies<0>();
      barrier_of<Shape::kParts, Shape::kWarps * 32>(run);
    }
  } else {
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      const int step = record_begin * kStepsARecord + s;
      if (step < step_end) x.copy(step, s * Shape::kStageBytes);
      commit_copies();
    }
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
      // Where the lane reads x, and how far apart the two halves are.
      const unsigned char* x_lane;
      int x_half;
      if constexpr (Shape::kWhole) {
        x_lane = x_shared + ((step * 2 * p.rows + min(lane / 4, p.rows - 1)) * 4 + lane % 4) * 16;
        x_half = p.rows * 64;
      } else {
        wait_copies<kStages - 2>();
        barrier_of<Shape::kParts, Shape::kWarps * 32>(run);
        if (step + kStages - 1 < step_end)
          x.copy(step + kStages - 1, (stage == 0 ? kStages - 1 : stage - 1) * Shape::kStageBytes);
        commit_copies();
        x_lane = x_shared + stage * Shape::kStageBytes + lane * 16;
        x_half = 512 + ((lane ^ 4) - lane) * 16;
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
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
          const uint4 b = *reinterpret_cast<const uint4*>(x_lane + i * 1024 + half * x_half);
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

// Adds the runs' sums in order; the first run's warps have them then. False for the others.
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
          const int64_t element = static_cast<int64_t>(row) * p.out_cols + col;
          float sum = sums[i][m][2 * hi + e];
          if (p.bias != nullptr) sum += __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[col]);
          if (p.out_f32) {
            if (p.residual != nullptr) sum += static_cast<const float*>(p.residual)[element];
            static_cast<float*>(p.out)[element] = sum;
          } else {
            if (p.residual != nullptr) sum += __bfloat162float(static_cast<const __nv_bfloat16*>(p.residual)[element]);
            static_cast<__nv_bfloat16*>(p.out)[element] = __float2bfloat16_rn(sum);
          }
        }
      }
    }
  }
}

// Of a gated product: the second half of the warps pass up to the first half, which have gate of the same outputs and
// then silu(gate) * up. Both are rounded first, as if they had been written. For all threads; true for the warps that
// have the result. `mine`: the thread has sums.
template <typename Shape>
__device__ inline bool apply_gate(unsigned char* shared, bool mine, Sums<Shape>& sums) {
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
  __syncthreads();  // what was in shared memory has been read
  if (mine && warp >= kHalf) each([](float& sum, float& up) { up = sum; });
  __syncthreads();
  if (!mine || warp >= kHalf) return false;
  each([](float& sum, float& up) { sum = silu_times(sum, up); });
  return true;
}

// Of a product that is rotated, where a block's first warp has outputs of the first half of a head and the second warp
// those half a head further on: rounds them, as if they had been written, and does what rope() does. For all threads;
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
  __syncthreads();  // what was in shared memory has been read
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
    const float* const cos_sin = rope.cos_sin + static_cast<int64_t>(position) * rope.head_dim + (d - warp * half);
    const float by_cos = __fmul_rn(sum, cos_sin[0]), by_sin = __fmul_rn(others[place], cos_sin[half]);
    const float turned = warp == 0 ? __fsub_rn(by_cos, by_sin) : __fadd_rn(by_cos, by_sin);
    if (slot >= rope.heads) return store_one(rope.k_type, rope.k_out, to, turned);
    static_cast<__nv_bfloat16*>(p.out)[static_cast<int64_t>(row) * p.n + col] = __float2bfloat16_rn(turned);
  });
}

// Grid: tiles of rows x blocks of outputs, part after part. The parts' types differ, so a block looks up its own. Of a
// gated product a block has the same outputs of both parts, of a rotated one outputs half a head apart.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMinBlocks)
    packed_product_kernel(const __grid_constant__ PackedProduct p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr bool kRotates = Shape::kWhole && Shape::kParts > 1, kGates = Shape::kWhole && Shape::kParts == 1;
  int index = 0, warp = static_cast<int>(threadIdx.x / 32) % Shape::kWarps, warps = Shape::kWarps;
  if (kGates && p.gated) {
    warps /= 2;
    index = warp / warps;
    warp %= warps;
  } else {
    while (index + 1 < p.part_count && static_cast<int>(blockIdx.y) >= p.parts[index + 1].first_block) ++index;
  }
  const PackedPart& part = p.parts[index];
  const int block = static_cast<int>(blockIdx.y) - part.first_block;
  int first_tile = (block * warps + warp) * Shape::kWeightTiles;
  if (kRotates && p.rope.head_dim > 0) {
    const int tiles = p.rope.head_dim / 2 / kTileRows,
              blocks = tiles / Shape::kWeightTiles;  // of half a head; of a head
    first_tile = (block / blocks * 2 + warp) * tiles + block % blocks * Shape::kWeightTiles;
  }
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
  bool mine = add_parts<Shape>(shared, sums);
  if constexpr (kRotates) {
    if (p.rope.head_dim > 0) return store_rotated<Shape>(p, part, first_tile, shared, mine, sums);
  }
  if constexpr (kGates) {
    if (p.gated) mine = apply_gate<Shape>(shared, mine, sums);
  }
  if (mine) store_sums<Shape>(p, part, first_tile, sums);
}

// ---- Launches, by the number of rows --------------------------------------------------------------------------------

template <typename Shape>
void launch_packed(PackedProduct p, CudaStream& stream) {
  constexpr int kBlockRows = Shape::kWarps * Shape::kWeightTiles * kTileRows;
  int64_t blocks = p.gated ? ceil_div(p.parts[0].rows, kBlockRows / 2) : 0;
  for (int i = 0; i < p.part_count && !p.gated; ++i) {
    p.parts[i].first_block = static_cast<int>(blocks);
    blocks += ceil_div(p.parts[i].rows, kBlockRows);
  }
  void (*const kernel)(PackedProduct) = packed_product_kernel<Shape>;
  // Without this the driver leaves shared memory for fewer blocks than the registers allow.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  const int bytes = std::max(Shape::kSharedBytes, x_bytes<Shape>(p) + Shape::kScalesBytes);
  launch_on(stream, "packed_product", {ceil_div(p.rows, Shape::kRowTiles * 8), blocks, Shape::kThreads, bytes}, kernel,
            p);
}

}  // namespace headrace::kernels::cuda
