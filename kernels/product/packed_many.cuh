// The product for more rows than kMaxFewRows. A warp multiplies two tiles of weights (32 outputs) by kRowTiles tiles
// of rows over its block's run of k; if there are several runs, the block that finishes last adds them
// in order. x and weights go through shared memory, a buffer of kSteps steps ahead: x for all warps of a block, weights
// for the lane that copies them. Instructions of the tensor cores with operands in registers share no issue slot with
// others, so the number of other instructions matters: two f32 multiplications for each of theirs, and unpacking, which
// kRowTiles divides.
#pragma once

#include <algorithm>

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/product/cuda_memory.h"
#include "kernels/product/packed.h"
#include "kernels/product/packed_fragments.cuh"
#include "kernels/product/packed_grids.cuh"
#include "kernels/product/packed_outputs.cuh"
#include "kernels/product/packed_steps.cuh"

namespace headrace::kernels::cuda {

template <int kRowTiles_, int kSteps_, int kMinBlocks_>
struct ManyShape {
  static constexpr bool kWhole = false, kRotates = false, kGates = false;
  static constexpr int kRowTiles = kRowTiles_, kWeightTiles = 2, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kSteps = kSteps_, kMinBlocks = kMinBlocks_, kTiles = kWarps * kWeightTiles;
  static constexpr int kXStep = kRowTiles * 1024, kSumsBytes = kRowTiles * 8 * 32;  // x, and a record's sums of it
  static constexpr int kRawApart = 512, kScaleBytes = 1024;  // of a tile's record: scales as stored (twice), in f32
  static constexpr int kSumsAt = 2 * kSteps * kXStep, kScalesAt = kSumsAt + kSumsBytes;
  static constexpr int kRawAt = kScalesAt + kTiles * kScaleBytes, kWeightsAt = kRawAt + 2 * kTiles * kRawApart;
  // Plain parts have no scales.
  HEADRACE_BOTH static constexpr int weights_at(int bits) { return bits == 16 ? kScalesAt : kWeightsAt; }
  HEADRACE_BOTH static constexpr int tile_step(int bits) {
    return bits == 16 ? 2048 : main_step_bytes(bits) + extra_step_bytes(bits);
  }
  HEADRACE_BOTH static constexpr int shared_bytes(int bits) {
    return weights_at(bits) + 2 * kSteps * kTiles * tile_step(bits);
  }
  static_assert(kSteps < kStepsARecord && kStepsARecord % kSteps == 0);
  static_assert(shared_bytes(16) <= 99 * 1024);  // sm_86 and sm_89 have no more for a block
};

// ---- Copies ---------------------------------------------------------------------------------------------------------

// A thread's copies of x, in the order of the fragments: lane 4 (r % 8) + q % 4 reads the 16 bytes of row r and columns
// 8 q. The two halves of a step have different row orders, to avoid bank conflicts. Rows beyond x are copies of its
// last row. Addresses are computed each time, because a copy keeps its address registers occupied for long.
template <typename Shape>
struct XCopies {
  static constexpr int kChunks = kStepCols / 8, kRowsAtOnce = Shape::kThreads / kChunks;
  static constexpr int kCopies = Shape::kRowTiles * 8 / kRowsAtOnce;
  static_assert(kRowsAtOnce % 8 == 0 && Shape::kRowTiles * 8 % kRowsAtOnce == 0);
  static_assert(Shape::kThreads >= Shape::kRowTiles * 16);
  const char *from, *sums;    // of the block's first row, of this thread's part of the sums
  uint32_t offsets[kCopies];  // of its rows
  uint32_t to, to_sums;
  int cols;  // from this thread's first on
  bool has_sums;

  __device__ XCopies(const PackedProduct& p, int row_tile, uint32_t shared) {
    const int thread = static_cast<int>(threadIdx.x), chunk = thread % kChunks, half = chunk / 4;
    const int row = thread / kChunks, first = row_tile * Shape::kRowTiles * 8, last = p.rows - 1 - first;
    from = static_cast<const char*>(p.x) + int64_t{first} * p.k * 2;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      offsets[i] = (static_cast<uint32_t>(min(row + i * kRowsAtOnce, last)) * p.k + chunk * 8) * 2;
    }
    to = shared + (row / 8 * 2 + half) * 512u + (((row % 8) ^ half) * 4 + chunk % 4) * 16u;
    cols = p.k - chunk * 8;
    const int64_t records = (p.k + kRecordCols - 1) / kRecordCols;
    sums = reinterpret_cast<const char*>(p.x_sums) + (first + min(thread / 2, last)) * records * 32 + thread % 2 * 16;
    to_sums = shared + Shape::kSumsAt + thread * 16u;
    has_sums = thread < Shape::kRowTiles * 16;
  }
  // Columns beyond k are zeros.
  __device__ void copy_steps(int first, int buffer) const {
    const uint32_t at = to + buffer * (Shape::kSteps * Shape::kXStep);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const char* const row = from + (offsets[i] + first * (kStepCols * 2u));
#pragma unroll
      for (int s = 0; s < Shape::kSteps; ++s) {
        const int bytes = (first + s) * kStepCols < cols ? 16 : 0;
        copy_async(at + s * Shape::kXStep + i * (kRowsAtOnce * 128), row + s * (kStepCols * 2), bytes);
      }
    }
  }
  __device__ void copy_sums(int record) const {
    if (has_sums) copy_async(to_sums, sums + record * 32, 16);
  }
};

// A lane's copies of its warp's weights. The lane itself reads the weights; other lanes read the scales, too.
template <typename Shape, int kBits, ScaleKind kScales>
struct WeightCopies {
  static constexpr int kTiles = Shape::kWeightTiles, kTileStep = Shape::tile_step(kBits);
  static constexpr int kMain = main_step_bytes(kBits), kExtra = extra_step_bytes(kBits);
  const char* tiles[kTiles];
  uint32_t main, extra, scales, after, word;  // from there on
  uint32_t to, to_extra, to_scales;
  int cols;

  __device__ WeightCopies(const PackedProduct& p, const PackedPart& part, int first_tile, uint32_t shared) {
    const TilePlanes planes = tile_planes({kBits, 0, kScales}, p.k);
    const int warp = static_cast<int>(threadIdx.x / 32), last = (part.rows + kTileRows - 1) / kTileRows - 1;
    const uint32_t lane = threadIdx.x % 32, record = static_cast<uint32_t>(planes.scales);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      tiles[m] = static_cast<const char*>(part.data) + min(first_tile + m, last) * planes.bytes;
    }
    main = lane * main_lane_bytes(kBits);
    constexpr bool kPairs = kScales == ScaleKind::kSixBits || kScales == ScaleKind::kFourBits;
    extra = static_cast<uint32_t>(planes.extra) + lane * extra_lane_bytes(kBits);
    scales = record + lane * (is_wide(kScales) ? 4 : 8);
    word = record + lane_word(kScales, static_cast<int>(lane)) * 4;
    after =
        record + record_words(kScales) * 4 + (kScales == ScaleKind::kHalfMin ? lane * 8 : lane / 4 * (kPairs ? 8 : 4));
    to = shared + Shape::weights_at(kBits) + warp * (kTiles * kTileStep) + lane * main_lane_bytes(kBits);
    to_extra = to + kMain - lane * (main_lane_bytes(kBits) - extra_lane_bytes(kBits));
    to_scales = shared + Shape::kRawAt + warp * (kTiles * Shape::kRawApart) + lane * 16;
    cols = p.k;
  }
  __device__ void copy_steps(int first, int buffer) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const char* const from = tiles[m] + (main + first * static_cast<uint32_t>(kMain));
      const char* const more = tiles[m] + (extra + first * static_cast<uint32_t>(kExtra));
#pragma unroll
      for (int s = 0; s < Shape::kSteps; ++s) {
        if ((first + s) * kStepCols >= cols) continue;  // old data here is multiplied by zeros of x
        const uint32_t at = ((buffer * Shape::kSteps + s) * Shape::kTiles + m) * kTileStep;
        if constexpr (kBits < 4) {
          copy_cached<8>(to + at, from + s * kMain);
        } else {
          copy_async(to + at, from + s * kMain, 16);
        }
        if constexpr (kBits == 8) copy_async(to + at + 512, from + s * kMain + 512, 16);
        if constexpr (kBits == 3 || kBits == 5) copy_word(to_extra + at, more + s * kExtra, 4);
        if constexpr (kBits == 6) copy_cached<8>(to_extra + at, more + s * kExtra);
      }
    }
  }
  __device__ void copy_scales(int record) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint32_t at = to_scales + (record % 2 * Shape::kTiles + m) * Shape::kRawApart;
      const char* const from = tiles[m] + record * static_cast<uint32_t>(record_bytes(kScales));
      constexpr bool kSigned = is_signed_narrow(kScales) || is_signed_wide(kScales);
      if constexpr (is_wide(kScales)) {
        copy_word(at, from + scales, 4);
      } else {
        copy_cached<8>(at, from + scales);
      }
      if constexpr (has_minima(kScales) || kScales == ScaleKind::kFourBits) copy_cached<8>(at + 8, from + after);
      if constexpr (kSigned) copy_word(at + 8, from + after, 4);
      if constexpr (has_word(kScales)) copy_word(at + 12, from + word, 4);
    }
  }
};

// The same for a plain part: rows g and g + 8 of each tile.
template <typename Shape>
struct WeightCopies<Shape, 16, ScaleKind::kNone> {
  const char* rows[Shape::kWeightTiles][2];
  uint32_t to;
  int cols;  // from the lane's first on

  __device__ WeightCopies(const PackedProduct& p, const PackedPart& part, int first_tile, uint32_t shared) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
    for (int m = 0; m < Shape::kWeightTiles; ++m) {
#pragma unroll
      for (int hi = 0; hi < 2; ++hi) {
        const int64_t row = min((first_tile + m) * kTileRows + hi * 8 + lane / 4, part.rows - 1);
        rows[m][hi] = static_cast<const char*>(part.data) + (row * p.k + lane % 4 * 8) * 2;
      }
    }
    to = shared + Shape::weights_at(16) + warp * (Shape::kWeightTiles * Shape::tile_step(16)) + lane * 16;
    cols = p.k - lane % 4 * 8;
  }
  __device__ void copy_steps(int first, int buffer) const {
#pragma unroll
    for (int s = 0; s < Shape::kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < Shape::kWeightTiles * 4; ++i) {
        const int m = i / 4, half = i / 2 % 2, hi = i % 2, col = (first + s) * kStepCols + half * 32;
        const uint32_t at = ((buffer * Shape::kSteps + s) * Shape::kTiles + m) * Shape::tile_step(16);
        copy_async(to + at + (2 * half + hi) * 512, rows[m][hi] + int64_t{col} * 2, col < cols ? 16 : 0);
      }
    }
  }
};

template <int kBits>
__device__ inline RawStep<kBits> read_step(const unsigned char* from, int lane) {
  RawStep<kBits> raw;
#pragma unroll
  for (int i = 0; i < RawStep<kBits>::kMain; ++i) {
    if constexpr (kBits < 4) {
      const uint2 two = *reinterpret_cast<const uint2*>(from + lane * 8);
      raw.main[i] = make_uint4(two.x, two.y, 0, 0);
    } else {
      raw.main[i] = *reinterpret_cast<const uint4*>(from + i * 512 + lane * 16);
    }
  }
  if constexpr (kBits == 3 || kBits == 5)
    raw.extra.x = *reinterpret_cast<const uint32_t*>(from + main_step_bytes(kBits) + lane * 4);
  if constexpr (kBits == 6) raw.extra = *reinterpret_cast<const uint2*>(from + 512 + lane * 8);
  return raw;
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

// A step's 64 columns. own: the warp's weights; scales, raw: of its tiles; group: the step's first of the record.
template <typename Shape, typename Kind>
__device__ inline void add_step(const unsigned char* x_lane, const unsigned char* own, const float4* scales,
                                const float4* raw_scales, int group, uint32_t zero, Sums<Shape>& sums) {
  constexpr int kBits = Kind::kBits;
  constexpr int kTiles = Shape::kWeightTiles;
  const int lane = static_cast<int>(threadIdx.x % 32), x_half = 512 + ((lane ^ 4) - lane) * 16;
  RawStep<kBits> raw[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) raw[m] = read_step<kBits>(own + m * Shape::tile_step(kBits), lane);
  float4 scale[kTiles] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t a[kTiles][2][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (Kind::kTwoScales || (kBits != 16 && half == 0)) {
        scale[m] = scales[m * (Shape::kScaleBytes / 16) + scale_slot(group + (Kind::kTwoScales ? half : 0), lane / 4)];
      }
      unpack_half<Kind>(raw[m], raw_scales + m * (Shape::kRawApart / 16), group / 2, half, zero, a[m]);
    }
    add_half<Shape, Kind>(a, scale, half, x_lane + half * x_half, sums);
    if constexpr (Kind::kScales == ScaleKind::kFourBits) {
      add_narrow_minima<Shape>(raw_scales, group + half, x_lane + half * x_half, sums);
    }
  }
}

// Computes the sums of the block's run of k. first_tile: the warp's.
template <typename Shape, typename Kind>
__device__ inline void sum_run(const PackedProduct& p, const PackedPart& part, int first_tile, unsigned char* shared,
                               Sums<Shape>& sums) {
  constexpr int kBits = Kind::kBits;
  constexpr ScaleKind kScales = Kind::kScales;
  constexpr int kTiles = Shape::kWeightTiles, kSteps = Shape::kSteps, kTileStep = Shape::tile_step(kBits);
  constexpr bool kMinima = has_minima(kScales);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int records = (p.k + kRecordCols - 1) / kRecordCols, run = static_cast<int>(blockIdx.x) / p.row_tiles;
  // Sums whole records: columns beyond the matrix are multiplied by zeros of x.
  const int begin = records * run / p.runs * kStepsARecord, end = records * (run + 1) / p.runs * kStepsARecord;
  const uint32_t zero = pair_of_value(static_cast<float>(Kind::kKind.zero) * (-1.0f / 64.0f));
  if constexpr (Kind::kGrid) copy_grid<Kind>();
  const XCopies<Shape> x(p, static_cast<int>(blockIdx.x) - run * p.row_tiles, shared_address(shared));
  const WeightCopies<Shape, kBits, kScales> weights(p, part, first_tile, shared_address(shared));
  const unsigned char* const x_lane = shared + lane / 4 * 64 + lane % 4 * (Kind::kNarrow ? 8 : 16);
  const unsigned char* const own = shared + Shape::weights_at(kBits) + warp * (kTiles * kTileStep);
  const auto* const x_sums = reinterpret_cast<const uint32_t*>(shared + Shape::kSumsAt) + lane * 2;
  auto* const scales = reinterpret_cast<float4*>(shared + Shape::kScalesAt + warp * (kTiles * Shape::kScaleBytes));
  const auto raw_scales = [&](int record) {
    const int tile = record % 2 * Shape::kTiles + warp * kTiles;
    return reinterpret_cast<const float4*>(shared + Shape::kRawAt + tile * Shape::kRawApart) + lane;
  };
  const auto copy = [&](int first, int buffer) {
    if (first < end) {
      if constexpr (kBits != 16) {
        if (first % kStepsARecord == 0) weights.copy_scales(first / kStepsARecord);
      }
      x.copy_steps(first, buffer);
      weights.copy_steps(first, buffer);
      // They are read at the end of the record. Those before have been read.
      if (kMinima && (first + kSteps) % kStepsARecord == 0) x.copy_sums(first / kStepsARecord);
    }
    commit_copies();
  };
  copy(begin, 0);
  int buffer = 0;
#pragma unroll 1
  for (int step = begin; step < end; buffer ^= 1) {
    wait_copies<0>();
    __syncthreads();
    copy(step + kSteps, buffer ^ 1);
    if (kBits != 16 && step % kStepsARecord == 0) {
      RawScales raw[kTiles];  // all of them before the stores, which the compiler keeps in their place
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const float4 words = raw_scales(step / kStepsARecord)[m * (Shape::kRawApart / 16)];
        raw[m] = reinterpret_cast<const RawScales&>(words);
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) stage_scales<kScales>(raw[m], lane, scales + m * (Shape::kScaleBytes / 16));
      __syncwarp();
    }
#pragma unroll 1
    for (int s = 0; s < kSteps; ++s, ++step) {
      const int at = buffer * kSteps + s;
      add_step<Shape, Kind>(x_lane + at * Shape::kXStep, own + at * (Shape::kTiles * kTileStep), scales,
                            raw_scales(step / kStepsARecord), step % kStepsARecord * 2, zero, sums);
    }
    if (kMinima && step % kStepsARecord == 0) {
      add_minima<Shape, kScales>(raw_scales(step / kStepsARecord - 1), x_sums, p.rows, sums);
    }
  }
}

// Adds the runs' sums in order, in the block whose run finishes last. Returns false in the other blocks.
template <typename Shape>
__device__ inline bool add_runs(const PackedProduct& p, Sums<Shape>& sums) {
  if (p.runs == 1) return true;
  constexpr int kQuads = Shape::kRowTiles * Shape::kWeightTiles;  // of a thread
  const int run = static_cast<int>(blockIdx.x) / p.row_tiles;
  const int block = static_cast<int>(blockIdx.y) * p.row_tiles + static_cast<int>(blockIdx.x) - run * p.row_tiles;
  auto* const of_block = reinterpret_cast<float4*>(p.run_sums) + int64_t{block} * p.runs * (kQuads * Shape::kThreads);
  const auto each = [&](int of_run, const auto& body) {
    float4* const place = of_block + of_run * (kQuads * Shape::kThreads) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
      for (int m = 0; m < Shape::kWeightTiles; ++m) {
        body(sums[i][m], place + (i * Shape::kWeightTiles + m) * Shape::kThreads);
      }
    }
  };
  each(run, [](const float(&sum)[4], float4* place) { __stcg(place, make_float4(sum[0], sum[1], sum[2], sum[3])); });
  __threadfence();
  __syncthreads();
  bool last = false;  // in the block's first thread; a shared variable would cost sm_89 its second block
  if (threadIdx.x == 0) {
    last = atomicAdd(p.arrived + block, 1u) == static_cast<uint32_t>(p.runs - 1);
    if (last) p.arrived[block] = 0;
  }
  if (!__syncthreads_or(last)) return false;
  __threadfence();
  each(0, [](float(&sum)[4], const float4* place) {
    const float4 part = __ldcg(place);
    sum[0] = part.x, sum[1] = part.y, sum[2] = part.z, sum[3] = part.w;
  });
#pragma unroll 1
  for (int other = 1; other < p.runs; ++other) {
    each(other, [](float(&sum)[4], const float4* place) {
      const float4 part = __ldcg(place);
      sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
    });
  }
  return true;
}

// Grid: runs of tiles of rows x blocks of outputs, part after part.
template <typename Shape, typename Kinds>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kMinBlocks)
    packed_many_kernel(const __grid_constant__ PackedProduct p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const auto [index, first_tile] = tiles_of_warp<Shape>(p);
  const PackedPart& part = p.parts[index];
  Sums<Shape> sums = {};
  Kinds::with(part.type, [&](auto kind) { sum_run<Shape, decltype(kind)>(p, part, first_tile, shared, sums); });
  if (!add_runs<Shape>(p, sums)) return;
  const WarpTiles tiles = tiles_of_warp<Shape>(p);
  store_sums<Shape>(p, p.parts[tiles.part], tiles.first, static_cast<int>(blockIdx.x) % p.row_tiles, sums);
}

template <typename Shape, typename Kinds = UsualKinds>
void launch_many(PackedProduct p, CudaStream& stream) {
  const int64_t blocks = place_parts(p, Shape::kTiles * kTileRows);
  int bytes = 0;
  for (int i = 0; i < p.part_count; ++i)
    bytes = std::max(bytes, Shape::shared_bytes(packed_kind(p.parts[i].type).bits));
  p.row_tiles = static_cast<int>(ceil_div(p.rows, Shape::kRowTiles * 8));
  CHECK(p.runs == 1 || p.row_tiles * blocks <= static_cast<int64_t>(kProductArrivedBytes / sizeof(uint32_t)),
        p.row_tiles * blocks, " blocks of a product are more than there are counters");
  void (*const kernel)(PackedProduct) = packed_many_kernel<Shape, Kinds>;
  // Without this the driver leaves shared memory for fewer blocks than the registers allow.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  launch_on(stream, "packed_product", {int64_t{p.row_tiles} * p.runs, blocks, Shape::kThreads, bytes}, kernel, p);
}

}  // namespace headrace::kernels::cuda
