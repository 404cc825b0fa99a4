// Attention over tiles of rows in 8 bits, by mma.sync m16n8k32. A warp has 16 queries of one head. Its state begins
// with the queries' own tile (own_tile.cuh), and the earlier tiles are folded into it in order. A row's state is
// relative to m, a score that was the largest of some tile. If a tile's largest score is far above m, it becomes m, and
// the state is scaled down. A row decides this alone, and the warp's other rows are scaled by 1; so a row's bits do not
// depend on its neighbours.
#include "kernels/attention/launch.cuh"
#include "kernels/int8_attention/bodies.h"
#include "kernels/int8_attention/instances.cuh"
#include "kernels/int8_attention/own_tile.cuh"

namespace headrace::kernels::cuda {

namespace {

// Sums begin at 1.5 * 2^23 as a float, so that an int32 sum below 2^22 is one without a conversion.
constexpr int kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;
constexpr float kFarAbove = 60.0f;  // powers of 2

__device__ inline float sum_of(int bits) { return __fsub_rn(__int_as_float(bits), kMagic); }

// ---- Queries --------------------------------------------------------------------------------------------------------

// A warp: a row of q.
template <int kDim>
__global__ void __launch_bounds__(128) convert_queries(const __grid_constant__ Int8AttentionParams params) {
  const AttentionShape& shape = params.shape;
  const int64_t row = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (row >= shape.queries * shape.heads) return;
  const int lane = threadIdx.x % 32, dim = static_cast<int>(shape.head_dim);
  WarpRow<kDim> q;
  q.load(params.q, shape.type, row / shape.heads * shape.q_stride + row % shape.heads * dim, dim);
  const int64_t kv_head = row % shape.heads / (shape.heads / shape.kv_heads);
  WarpRow<kDim> centre;
  centre.load(params.centre, DType::kF32, kv_head * dim, dim);
  float product = 0.0f;
#pragma unroll
  for (int i = 0; i < WarpRow<kDim>::kEach; ++i) product = __fmaf_rn(q.v[i], centre.v[i], product);
  product = warp_sum(product);
  q.rotate(dim & -dim);
  const RowQuant quant = q.quant();
  const Kv8Workspace at = workspace_of(shape);
  uint8_t* const out = reinterpret_cast<uint8_t*>(params.workspace) + row * kDim;
  q.store(quant, [&](int d) { return out + d; });
  if (lane == 0) reinterpret_cast<float2*>(params.workspace + at.scales)[row] = {quant.scale, product};
}

// ---- Tiles ----------------------------------------------------------------------------------------------------------

template <int kDim>
struct Int8Tiles {
  static constexpr int kWarps = kDim == 64 ? 12 : 8, kThreads = 32 * kWarps, kRows = 16 * kWarps;
  static constexpr int kKeys = static_cast<int>(kKv8Tile), kSteps = kDim / 32, kStages = kDim == 256 ? 2 : 3;
  static constexpr int kBlockBytes = static_cast<int>(kv8_block_bytes(kDim));
  static constexpr int kHeld = kDim == 256 ? 4 : kSteps;  // steps of q in registers; the others are in shared memory
  // Channels of a block: the others are blocks of their own, which compute the scores again, because o of 256 channels
  // leaves too few registers.
  static constexpr int kOut = kDim == 256 ? 128 : kDim, kParts = kDim / kOut;
  static constexpr int kQueriesAt = kStages * kBlockBytes;
  static constexpr int kSharedBytes = kQueriesAt + kWarps * (kSteps - kHeld) * 512;
  static_assert(kSharedBytes <= 99 * 1024);  // the limit of sm_86 and sm_89
  static_assert(127 * 127 * kDim < 1 << 22 && 255 * 127 * kKeys < 1 << 22);

  const Int8AttentionParams& params;
  const int head, first, end, begin;  // queries' positions are [first, end); the block's rows begin at `begin`
  const int channel;                  // the block's first
  const uint32_t shared;
  const unsigned char* blocks;  // of the KV head, from tile 0 on

  uint32_t q[kHeld][4];
  float o[kOut / 8][4];
  float scale[2], m[2], l[2];  // of rows g and g + 8; l: of this thread's columns

  __device__ Int8Tiles(const Int8AttentionParams& of, const void* memory)
      : params(of),
        head(blockIdx.x),
        first(static_cast<int>(of.first_position)),
        end(first + static_cast<int>(of.shape.queries)),
        begin((first / kRows + static_cast<int>(gridDim.y - 1 - blockIdx.y)) * kRows),
        channel(static_cast<int>(blockIdx.z) * kOut),
        shared(shared_address(memory)) {
    const int kv_head = head / static_cast<int>(of.shape.heads / of.shape.kv_heads);
    blocks = reinterpret_cast<const unsigned char*>(of.kv.data) + int64_t{kv_head} * kBlockBytes;
  }

  __device__ int warp_begin() const { return begin + static_cast<int>(threadIdx.x) / 32 * 16; }
  __device__ int position_of(int half) const {
    return warp_begin() + half * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  // Of rows without a query: a query's.
  __device__ int64_t row_of(int half) const {
    return int64_t{max(first, min(position_of(half), end - 1)) - first} * params.shape.heads + head;
  }

  __device__ void start() {
    const AttentionShape& shape = params.shape;
    const Kv8Workspace at = workspace_of(shape);
    const int t = threadIdx.x % 4, dim = static_cast<int>(shape.head_dim);
    const float of_softmax = __fmul_rn(shape.scale, kLog2E);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = row_of(half);
      const auto* const from = reinterpret_cast<const uint32_t*>(params.workspace + row * kDim);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint32_t low = from[step * 8 + t], high = from[step * 8 + 4 + t];
        if (step < kHeld) {
          q[step % kHeld][half] = low;
          q[step % kHeld][2 + half] = high;
        } else {
          store_word(query_at(step) + half * 4, static_cast<int>(low));
          store_word(query_at(step) + 8 + half * 4, static_cast<int>(high));
        }
      }
      // Of q: its scale, and q.c, which the scores of the other tiles lack: m counts from it.
      const float2 of_q = reinterpret_cast<const float2*>(params.workspace + at.scales)[row];
      scale[half] = __fmul_rn(of_q.x, __fdiv_rn(of_softmax, static_cast<float>(dim & -dim)));
      const float2 ml = *own_ml(params, at, row);
      m[half] = __fmaf_rn(-of_q.y, of_softmax, ml.x);
      l[half] = t == 0 ? ml.y : 0.0f;
      const float* const own = own_o(params, at, row);
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) {
        const int d = channel + n * 8 + t * 2;
        const float2 pair = d < dim ? *reinterpret_cast<const float2*>(own + d) : float2{0.0f, 0.0f};
        o[n][2 * half] = pair.x;
        o[n][2 * half + 1] = pair.y;
      }
    }
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
    l[0] = quad_sum(l[0]);
    l[1] = quad_sum(l[1]);
  }

 private:
  // Only this lane reads what it stores there.
  __device__ uint32_t query_at(int step) const {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return shared + kQueriesAt + (warp * (kSteps - kHeld) + static_cast<uint32_t>(step - kHeld)) * 512 + lane * 16;
  }
  __device__ void query_of(int step, uint32_t (&a)[4]) const {
    if (step >= kHeld) {
      const uint4 words = load_words(query_at(step));
      a[0] = words.x, a[1] = words.y, a[2] = words.z, a[3] = words.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = q[step % kHeld][i];
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
    float s[kKeys / 8][4];
    score(block + lane * 16, block + static_cast<uint32_t>(kv8_k_scales(kDim)) + t * 8, s);
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) top[i / 2] = fmaxf(top[i / 2], s[n][i]);
    }
    float factor[2];
    bool far = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = __fmul_rn(quad_max(top[half]), scale[half]);
      far |= top[half] > __fadd_rn(m[half], kFarAbove);
    }
    if (__any_sync(~0u, far)) raise(top);
    uint32_t p[kKeys / 32][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factor[half] = exp2_fast(__fsub_rn(top[half], m[half]));
      const float sum = weigh(s, half, top[half], p);
      l[half] = __fmaf_rn(sum, factor[half], l[half]);
      factor[half] = __fmul_rn(factor[half], 1.0f / 255);
    }
    add(block + static_cast<uint32_t>(kv8_v(kDim)) + channel * 64 + lane * 16,
        block + static_cast<uint32_t>(kv8_v_scales(kDim)) + channel * 4 + t * 8, p, factor);
  }

  // Scores times the keys' scales; a row's own scale is still missing.
  __device__ void score(uint32_t keys, uint32_t scales, float (&s)[kKeys / 8][4]) const {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      int sums[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = kMagicBits;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        query_of(step, a);
        const uint4 b = load_words(keys + (n * kSteps + step) * 512);
        multiply(sums[0], a, b.x, b.y);
        multiply(sums[1], a, b.z, b.w);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 k = load_floats(scales + (2 * n + i) * 32);
        s[2 * n + i][0] = __fmul_rn(sum_of(sums[i][0]), k.x);
        s[2 * n + i][1] = __fmul_rn(sum_of(sums[i][1]), k.y);
        s[2 * n + i][2] = __fmul_rn(sum_of(sums[i][2]), k.x);
        s[2 * n + i][3] = __fmul_rn(sum_of(sums[i][3]), k.y);
      }
    }
  }

  // A row's weights as bytes of operand A, and their sum before they are rounded.
  __device__ float weigh(const float (&s)[kKeys / 8][4], int half, float top, uint32_t (&p)[kKeys / 32][4]) const {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 2) {
      uint32_t bytes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = exp2_fast(__fmaf_rn(s[n + i / 2][2 * half + i % 2], scale[half], -top));
        sum = __fadd_rn(sum, weight);
        bytes[i] = __float_as_uint(__fmaf_rn(weight, 255.0f, kMagic));
      }
      p[n / 4][n % 4 / 2 * 2 + half] = RowQuant::pack_low_bytes(bytes[0], bytes[1], bytes[2], bytes[3]);
    }
    return sum;
  }

  __device__ void raise(const float (&top)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float to = top[half] > __fadd_rn(m[half], kFarAbove) ? top[half] : m[half];
      const float keep = to == m[half] ? 1.0f : exp2_fast(__fsub_rn(m[half], to));
      m[half] = to;
      l[half] = __fmul_rn(l[half], keep);
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) {
        o[n][2 * half] = __fmul_rn(o[n][2 * half], keep);
        o[n][2 * half + 1] = __fmul_rn(o[n][2 * half + 1], keep);
      }
    }
  }

  __device__ void add(uint32_t values, uint32_t scales, const uint32_t (&p)[kKeys / 32][4], const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < kOut / 16; ++n) {
      int sums[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = kMagicBits;
#pragma unroll
      for (int step = 0; step < kKeys / 32; ++step) {
        const uint4 b = load_words(values + (n * 2 + step) * 512);
        multiply_unsigned(sums[0], p[step], b.x, b.y);
        multiply_unsigned(sums[1], p[step], b.z, b.w);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 v = load_floats(scales + (2 * n + i) * 32);
        float(&to)[4] = o[2 * n + i];
        to[0] = __fmaf_rn(__fmul_rn(sum_of(sums[i][0]), v.x), factor[0], to[0]);
        to[1] = __fmaf_rn(__fmul_rn(sum_of(sums[i][1]), v.y), factor[0], to[1]);
        to[2] = __fmaf_rn(__fmul_rn(sum_of(sums[i][2]), v.x), factor[1], to[2]);
        to[3] = __fmaf_rn(__fmul_rn(sum_of(sums[i][3]), v.y), factor[1], to[3]);
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
__global__ void __launch_bounds__(Int8Tiles<kDim>::kThreads, 1)
    int8_tiles(const __grid_constant__ Int8AttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  Int8Tiles<kDim> tiles(params, shared);
  tiles.start();
  tiles.walk();
  const AttentionShape& shape = params.shape;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = tiles.position_of(half);
    if (position < tiles.first || position >= tiles.end) continue;
    const int64_t to = tiles.row_of(half) * shape.head_dim;
#pragma unroll
    for (int n = 0; n < Int8Tiles<kDim>::kOut / 8; ++n) {
      const int d = tiles.channel + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
      if (d >= shape.head_dim) break;
      // + 0: a zero's sign must not depend on rows with weight 0.
      store_pair(params.out, shape.type, to + d, __fadd_rn(__fdiv_rn(tiles.o[n][2 * half], tiles.l[half]), 0.0f),
                 __fadd_rn(__fdiv_rn(tiles.o[n][2 * half + 1], tiles.l[half]), 0.0f));
    }
  }
}

// ---- Launches -------------------------------------------------------------------------------------------------------

template <typename Q, typename T, int kDim>
void launch_own(const Int8AttentionParams& params, CudaStream& stream) {
  using Tile = OwnTile<Q, T, kDim>;
  const int64_t end = params.first_position + params.shape.queries;
  const int64_t blocks = ceil_div(end, kKv8Tile) - params.first_position / kKv8Tile;
  launch(own_tile<Q, T, kDim>, "own_tile",
         dim3(static_cast<unsigned>(params.shape.heads), static_cast<unsigned>(blocks)), Tile::kThreads,
         Tile::kSharedBytes, params, stream);
}
template <typename Q, typename T>
void launch_own(const Int8AttentionParams& params, CudaStream& stream) {
  if (params.shape.head_dim <= 64) return launch_own<Q, T, 64>(params, stream);
  if (params.shape.head_dim <= 128) return launch_own<Q, T, 128>(params, stream);
  launch_own<Q, T, 256>(params, stream);
}
void own_tiles(const Int8AttentionParams& params, CudaStream& stream) {
  const AttentionShape& shape = params.shape;
  if (!has_tiles(shape)) {
    const dim3 grid(static_cast<unsigned>(shape.queries),
                    static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)));
    return launch(own_rows, "own_rows", grid, kRowsThreads, 0, params, stream);
  }
  if (shape.k_type == DType::kBF16) return launch_own<__nv_bfloat16, __nv_bfloat16>(params, stream);
  if (shape.type == DType::kBF16) return launch_own<__nv_bfloat16, __half>(params, stream);
  launch_own<__half, __half>(params, stream);
}

}  // namespace

void int8_attention(const Int8AttentionParams& params, Stream& stream) {
  const AttentionShape& shape = params.shape;
  CudaStream& on = cuda_stream(stream);
  own_tiles(params, on);
  const_dim(shape.head_dim, [&](auto size) {
    constexpr int kDim = size.value;
    using Tiles = Int8Tiles<kDim>;
    launch(convert_queries<kDim>, "convert_queries",
           dim3(static_cast<unsigned>(ceil_div(shape.queries * shape.heads, 4))), 128, 0, params, on);
    const int64_t end = params.first_position + shape.queries;
    const int64_t blocks = ceil_div(end, Tiles::kRows) - params.first_position / Tiles::kRows;
    launch(int8_tiles<kDim>, "int8_tiles",
           dim3(static_cast<unsigned>(shape.heads), static_cast<unsigned>(blocks), Tiles::kParts), Tiles::kThreads,
           Tiles::kSharedBytes, params, on);
  });
}

}  // namespace headrace::kernels::cuda
