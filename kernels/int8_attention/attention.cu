// Attention over tiles of rows in 8 bits, by mma.sync m16n8k32. A warp has 32 queries of one head: with 16, reading
// operands from shared memory would take about as long as the products. Its state begins with the queries' own tile
// (own_tile.cuh), and the earlier tiles are folded into it in order. A row's state is relative to m, a score that was
// the largest of some tile. If a tile's largest score is far above m, it becomes m, and the state is scaled down. A row
// decides this alone, and the warp's other rows are scaled by 1; so a row's bits do not depend on its neighbours.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attention/launch.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/int8_attention/bodies.h"
#include "kernels/int8_attention/instances.cuh"
#include "kernels/int8_attention/prepare.cuh"
#include "kernels/int8_attention/rows.cuh"
#include "kernels/int8_attention/workspace.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kSumsStartBits = 0x4b400000;  // kKv8SumsStart
constexpr float kFarAbove = 60.0f;          // powers of 2
constexpr float kLog255 = 7.99435344f;      // log2(255)

// NaN if one of them is.
__device__ inline float larger(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ inline float quad_larger(float value) {
  value = larger(value, __shfl_xor_sync(~0u, value, 1));
  return larger(value, __shfl_xor_sync(~0u, value, 2));
}

// ---- Tiles ----------------------------------------------------------------------------------------------------------

template <int kDim>
struct Int8Tiles {
  // Tiles of 16 rows of a warp, which share the operands that it loads. Heads of 256 leave no registers for a second.
  static constexpr int kMTiles = kDim == 256 ? 1 : 2, kWarps = kDim == 256 ? 8 : 4, kBlocks = kDim == 256 ? 1 : 2;
  static constexpr int kThreads = 32 * kWarps, kWarpRows = 16 * kMTiles, kRows = kWarpRows * kWarps;
  static constexpr int kKeys = static_cast<int>(kKv8Tile), kSteps = kDim / 32, kStages = 2;
  static constexpr int kBlockBytes = static_cast<int>(kv8_block_bytes(kDim));
  static constexpr int kHeld = kDim == 256 ? 0 : 1;  // steps of q in registers; the others are in shared memory
  static constexpr int kQueriesAt = kStages * kBlockBytes;
  static constexpr int kSharedBytes = kQueriesAt + kWarps * kMTiles * (kSteps - kHeld) * 512;
  static_assert((kSharedBytes + 1024) * kBlocks <= 100 * 1024);  // the limit of sm_86 and sm_89
  static_assert(127 * 127 * kDim < 1 << 22 && 255 * 127 * kKeys < 1 << 22);
  static_assert(kKv8Tile % kWarpRows == 0);  // a warp's rows have one own tile

  const Int8AttentionParams& params;
  const int head, first, end, begin;  // queries' positions are [first, end); the block's rows begin at `begin`
  const uint32_t shared;
  const unsigned char* blocks;  // of the KV head, from tile 0 on

  uint32_t q[kMTiles][kHeld + 1][4];  // the last one is unused
  float o[kMTiles][kDim / 8][4];
  float scale[kMTiles][2], m[kMTiles][2], l[kMTiles][2];  // of rows g and g + 8; l: of this thread's columns

  __device__ Int8Tiles(const Int8AttentionParams& of, const void* memory)
      : params(of),
        head(blockIdx.x),
        first(static_cast<int>(of.first_position)),
        end(first + static_cast<int>(of.shape.queries)),
        begin((first / kRows + static_cast<int>(gridDim.y - 1 - blockIdx.y)) * kRows),
        shared(shared_address(memory)) {
    const int kv_head = head / static_cast<int>(of.shape.heads / of.shape.kv_heads);
    blocks = reinterpret_cast<const unsigned char*>(of.kv.data) + int64_t{kv_head} * kBlockBytes;
  }

  __device__ int warp_begin() const { return begin + static_cast<int>(threadIdx.x) / 32 * kWarpRows; }
  __device__ int position_of(int tile, int half) const {
    return warp_begin() + tile * 16 + half * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  // Of rows without a query: a query's.
  __device__ int64_t row_of(int tile, int half) const {
    return int64_t{max(first, min(position_of(tile, half), end - 1)) - first} * params.shape.heads + head;
  }

  __device__ void start() {
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) start_row(i / 2, i % 2);
  }

  // Folds the tiles before the queries' own, in order.
  __device__ void walk() {
    const int tiles = (min(begin + kRows, end) - 1) / kKeys, own = min(warp_begin(), end - 1) / kKeys;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i, i, tiles);
    int stage = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      wait_copies<kStages - 2>();
      __syncthreads();  // this tile is loaded, and all threads have finished with the one before
      const int next = stage == 0 ? kStages - 1 : stage - 1;
      fetch(tile + kStages - 1, next, tiles);
      if (tile < own) fold(shared + stage * kBlockBytes);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_copies<0>();
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) l[i / 2][i % 2] = quad_sum(l[i / 2][i % 2]);
  }

  // What a sink adds to the row's l.
  __device__ float sink_weight(float sink, int tile, int half) const {
    const Kv8Workspace at = workspace_of(params.shape);
    const float2 of_q = reinterpret_cast<const float2*>(params.workspace + at.scales)[row_of(tile, half)];
    const float base = __fmaf_rn(of_q.y, __fmul_rn(params.shape.scale, kLog2E), m[tile][half]);
    return exp2f(__fmaf_rn(sink, kLog2E, -base));
  }

 private:
  __device__ void start_row(int tile, int half) {
    const AttentionShape& shape = params.shape;
    const Kv8Workspace at = workspace_of(shape);
    const int t = threadIdx.x % 4, dim = static_cast<int>(shape.head_dim);
    const float of_softmax = __fmul_rn(shape.scale, kLog2E);
    const int64_t row = row_of(tile, half);
    const auto* const from = reinterpret_cast<const uint32_t*>(params.workspace + row * kDim);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t low = from[step * 8 + t], high = from[step * 8 + 4 + t];
      if (step < kHeld) {
        q[tile][step % (kHeld + 1)][half] = low;
        q[tile][step % (kHeld + 1)][2 + half] = high;
      } else {
        store_word(query_at(tile, step) + half * 4, static_cast<int>(low));
        store_word(query_at(tile, step) + 8 + half * 4, static_cast<int>(high));
      }
    }
    // Of q: its scale, and q.c, which the scores of the other tiles lack: m counts from it.
    const float2 of_q = reinterpret_cast<const float2*>(params.workspace + at.scales)[row];
    scale[tile][half] = __fmul_rn(of_q.x, __fdiv_rn(of_softmax, static_cast<float>(dim & -dim)));
    const float2 ml = *own_ml(params, at, row);
    m[tile][half] = __fmaf_rn(-of_q.y, of_softmax, ml.x);
    l[tile][half] = t == 0 ? ml.y : 0.0f;
    const float* const own = own_o(params, at, row);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int d = n * 8 + t * 2;
      const float2 pair = d < dim ? *reinterpret_cast<const float2*>(own + d) : float2{0.0f, 0.0f};
      o[tile][n][2 * half] = pair.x;
      o[tile][n][2 * half + 1] = pair.y;
    }
  }

  // Only this lane reads what it stores there.
  __device__ uint32_t query_at(int tile, int step) const {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t fragment = (warp * kMTiles + static_cast<uint32_t>(tile)) * (kSteps - kHeld);
    return shared + kQueriesAt + (fragment + static_cast<uint32_t>(step - kHeld)) * 512 + lane * 16;
  }
  __device__ void query_of(int tile, int step, uint32_t (&a)[4]) const {
    if (step >= kHeld) {
      const uint4 words = load_words(query_at(tile, step));
      a[0] = words.x, a[1] = words.y, a[2] = words.z, a[3] = words.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = q[tile][step % (kHeld + 1)][i];
    }
  }
  // One group of copies, also if it is empty.
  __device__ void fetch(int tile, int stage, int tiles) const {
    if (tile < tiles) {
      const unsigned char* const from = blocks + int64_t{tile} * params.shape.kv_heads * kBlockBytes;
      const uint32_t to = shared + stage * kBlockBytes;
#pragma unroll
      for (int i = threadIdx.x * 16; i < kBlockBytes; i += kThreads * 16) copy_async(to + i, from + i, 16);
    }
    commit_copies();
  }

  __device__ void fold(uint32_t block) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    float s[kMTiles][kKeys / 8][4];
    score(block + lane * 16, block + static_cast<uint32_t>(kv8_k_scales(kDim)) + t * 16, s);
    float top[kMTiles][2], factor[kMTiles][2];
    uint32_t p[kMTiles][kKeys / 32][4], sum[kMTiles][2];
    bool far = false;
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      const int tile = i / 2, half = i % 2;
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        most = larger(larger(most, s[tile][n][2 * half]), s[tile][n][2 * half + 1]);
      }
      top[tile][half] = __fmul_rn(quad_larger(most), scale[tile][half]);
      far |= top[tile][half] > __fadd_rn(m[tile][half], kFarAbove);
      sum[tile][half] = weigh(s[tile], half, scale[tile][half], __fsub_rn(kLog255, top[tile][half]), p[tile]);
    }
    if (__any_sync(~0u, far)) raise(top);  // the scores' registers are free now
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      const int tile = i / 2, half = i % 2;
      factor[tile][half] = __fmul_rn(exp2_fast(__fsub_rn(top[tile][half], m[tile][half])), 1.0f / 255);
      l[tile][half] = __fmaf_rn(static_cast<float>(sum[tile][half]), factor[tile][half], l[tile][half]);
    }
    add(block + static_cast<uint32_t>(kv8_v(kDim)) + lane * 16,
        block + static_cast<uint32_t>(kv8_v_scales(kDim)) + t * 8, p, factor);
  }

  // Scores times the keys' scales; a row's own scale is still missing.
  __device__ void score(uint32_t keys, uint32_t scales, float (&s)[kMTiles][kKeys / 8][4]) const {
    int sums[kMTiles][kKeys / 8][4];
#pragma unroll
    for (int i = 0; i < kMTiles * kKeys / 2; ++i) sums[i / (kKeys / 2)][i / 4 % (kKeys / 8)][i % 4] = kSumsStartBits;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kMTiles][4];
#pragma unroll
      for (int tile = 0; tile < kMTiles; ++tile) query_of(tile, step, a[tile]);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        const uint4 b = load_words(keys + (n * kSteps + step) * 512);
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          multiply(sums[tile][2 * n], a[tile], b.x, b.y);
          multiply(sums[tile][2 * n + 1], a[tile], b.z, b.w);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      const uint4 words = load_words(scales + n * 64);
      const float scale[2] = {__uint_as_float(words.x), __uint_as_float(words.z)};
      const float minus_start[2] = {__uint_as_float(words.y), __uint_as_float(words.w)};
#pragma unroll
      for (int i = 0; i < 4 * kMTiles; ++i) {
        s[i / 4][n][i % 4] = __fmaf_rn(__int_as_float(sums[i / 4][n][i % 4]), scale[i % 2], minus_start[i % 2]);
      }
    }
  }

  // A row's weights as bytes of operand A, and their sum.
  __device__ static uint32_t weigh(const float (&s)[kKeys / 8][4], int half, float scale, float shift,
                                   uint32_t (&p)[kKeys / 32][4]) {
    uint32_t sum = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 2) {
      uint32_t bytes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = exp2_fast(__fmaf_rn(s[n + i / 2][2 * half + i % 2], scale, shift));
        bytes[i] = __float_as_uint(__fadd_rn(weight, kKv8SumsStart));
      }
      const uint32_t word = RowQuant::pack_low_bytes(bytes[0], bytes[1], bytes[2], bytes[3]);
      p[n / 4][n % 4 / 2 * 2 + half] = word;
      sum = __dp4a(word, 0x01010101u, sum);
    }
    return sum;
  }

  __device__ void raise(const float (&top)[kMTiles][2]) {
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      const int tile = i / 2, half = i % 2;
      float& now = m[tile][half];
      const float to = top[tile][half] > __fadd_rn(now, kFarAbove) ? top[tile][half] : now;
      const float keep = to == now ? 1.0f : exp2_fast(__fsub_rn(now, to));
      now = to;
      l[tile][half] = __fmul_rn(l[tile][half], keep);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        o[tile][n][2 * half] = __fmul_rn(o[tile][n][2 * half], keep);
        o[tile][n][2 * half + 1] = __fmul_rn(o[tile][n][2 * half + 1], keep);
      }
    }
  }

  // The sums of some channels are folded into o while the products of the next ones run.
  __device__ void add(uint32_t values, uint32_t scales, const uint32_t (&p)[kMTiles][kKeys / 32][4],
                      const float (&factor)[kMTiles][2]) {
    constexpr int kGroups = kDim / 16, kHalves = kKeys / 32;  // of 16 channels, of 32 keys
    int sums[2][kMTiles][2][4];
    uint4 b[2][kHalves];
    const auto load = [&](int n) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) b[n % 2][half] = load_words(values + (n * kHalves + half) * 512);
    };
    const auto multiply_group = [&](int n) {
      int(&to)[kMTiles][2][4] = sums[n % 2];
#pragma unroll
      for (int i = 0; i < 8 * kMTiles; ++i) to[i / 8][i / 4 % 2][i % 4] = kSumsStartBits;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const uint4& from = b[n % 2][half];
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          multiply_unsigned(to[tile][0], p[tile][half], from.x, from.y);
          multiply_unsigned(to[tile][1], p[tile][half], from.z, from.w);
        }
      }
    };
    load(0);
    if (kGroups > 1) load(1);
    multiply_group(0);
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (n + 1 < kGroups) multiply_group(n + 1);
      if (n + 2 < kGroups) load(n + 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 v = load_floats(scales + (2 * n + i) * 32);
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          float(&to)[4] = o[tile][2 * n + i];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float sum = __fsub_rn(__int_as_float(sums[n % 2][tile][i][j]), kKv8SumsStart);
            to[j] = __fmaf_rn(sum, __fmul_rn(factor[tile][j / 2], j % 2 == 0 ? v.x : v.y), to[j]);
          }
        }
      }
    }
  }
};

__device__ inline void store_pair(void* to, DType type, int64_t index, float a, float b) {
  switch (type) {
    case DType::kF32:
      *reinterpret_cast<float2*>(static_cast<float*>(to) + index) = {a, b};
      break;
    case DType::kF16:
      *reinterpret_cast<uint32_t*>(static_cast<__half*>(to) + index) = pack(a, b, __half{});
      break;
    default:
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(to) + index) = pack(a, b, __nv_bfloat16{});
  }
}

// A block: queries at absolute multiples of its rows, of one head; the longest rows first.
template <int kDim>
__global__ void __launch_bounds__(Int8Tiles<kDim>::kThreads, Int8Tiles<kDim>::kBlocks)
    int8_tiles(const __grid_constant__ Int8AttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  Int8Tiles<kDim> tiles(params, shared);
  tiles.start();
  tiles.walk();
  const AttentionShape& shape = params.shape;
#pragma unroll
  for (int i = 0; i < 2 * Int8Tiles<kDim>::kMTiles; ++i) {
    const int tile = i / 2, half = i % 2, position = tiles.position_of(tile, half);
    if (position < tiles.first || position >= tiles.end) continue;
    const int64_t to = tiles.row_of(tile, half) * shape.head_dim;
    float sum = tiles.l[tile][half];
    if (params.sinks != nullptr) {
      sum = __fadd_rn(sum, tiles.sink_weight(params.sinks[tiles.head], tile, half));
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int d = n * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
      if (d >= shape.head_dim) break;
      const float(&o)[4] = tiles.o[tile][n];
      // + 0: a zero's sign must not depend on rows with weight 0.
      store_pair(params.out, shape.type, to + d, __fadd_rn(__fdiv_rn(o[2 * half], sum), 0.0f),
                 __fadd_rn(__fdiv_rn(o[2 * half + 1], sum), 0.0f));
    }
  }
}

}  // namespace

void int8_attention(const Int8AttentionParams& params, Stream& stream) {
  const AttentionShape& shape = params.shape;
  CudaStream& on = cuda_stream(stream);
  prepare_queries(params, on);
  const_dim(shape.head_dim, [&](auto size) {
    constexpr int kDim = size.value;
    using Tiles = Int8Tiles<kDim>;
    const int64_t end = params.first_position + shape.queries;
    const int64_t blocks = ceil_div(end, Tiles::kRows) - params.first_position / Tiles::kRows;
    launch(int8_tiles<kDim>, "int8_tiles", dim3(static_cast<unsigned>(shape.heads), static_cast<unsigned>(blocks)),
           Tiles::kThreads, Tiles::kSharedBytes, params, on);
  });
}

}  // namespace headrace::kernels::cuda
