// Attention over the prefix while decoding (FlashDecoding; docs/design.md, section 8): one state a segment, then all of
// them folded into the queries' states from left to right.
#include <algorithm>

#include "kernels/attention/bodies.h"
#include "kernels/attention/few_exact_tile.cuh"
#include "kernels/attention/launch.cuh"
#include "kernels/attention/low_bit_tile.cuh"
#include "kernels/attention/prefix_block.cuh"

namespace headrace::kernels::cuda {

namespace {

// On an H200, at 61,440 rows and one query, three small blocks per multiprocessor, which the registers allow, take
// 73.9 us instead of 71.3; folding in a KV head's last block instead of a second launch gains nothing.
// A large block has twice as many rows of q: two tiles of 16 a warp, or, where o of two has no room, twice the warps.
// Weights of a large head are added in FewExactTile's parts.
template <typename Q, typename T, int kDim, bool kLarge>
using PrefixTile =
    AttentionTile<T, kDim, kLarge && kDim <= 128 ? 2 : 1, 2, (kDim > 128 ? 4 : 1), Q, (kLarge && kDim > 128 ? 8 : 4)>;

template <typename Q, typename T, int kDim, bool kLarge>
__global__ void __launch_bounds__(PrefixTile<Q, T, kDim, kLarge>::kThreads, kLarge ? 1 : 2)
    prefix_tiles(const __grid_constant__ PrefixAttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = PrefixTile<Q, T, kDim, kLarge>;
  using Block = PrefixBlock<T, Tile::kRows>;
  constexpr int kMTiles = Tile::kWarpRows / 16;
  const AttentionShape& shape = params.shape;
  const int dim = static_cast<int>(shape.head_dim);
  Tile tile;
  {
    const Block block(params);
    const auto row_of = [&](int row) { return block.row_of(row); };
    const TileBounds bounds = block.bounds();
    tile.start(shared, shape.scale, dim, queries_aligned(shape, params.q), bounds, row_of);
    tile.walk({params.segments[block.n], block.kv_head, dim, bounds.first, bounds.limit},
              block.begin + Tile::warp_row() < block.rows, row_of);
  }
  tile.finish();

  const Block block(params);  // the products leave no registers to keep it in
  const int count = block.rows - block.begin;
  for (int i = 0; i < 2 * kMTiles; ++i) {
    const int part = i / 2, half = i % 2, row = Tile::fragment_row(part, half, thread_now()), t = thread_now() % 4;
    if (row >= count) continue;
    const int64_t index = block.state_of(row);
    const float m = tile.m[part][half];
    if (t == 0) {
      params.scratch.ml[2 * index] = __fmul_rn(__fmul_rn(m, tile.scale_of(part, half)), kLn2);
      params.scratch.ml[2 * index + 1] = tile.l[part][half];
    }
#pragma unroll
    for (int column = 0; column < Tile::kChunks; ++column) {
      const int d = column * 8 + t * 2;
      if (d >= dim) break;
      // + 0: a zero's sign must not depend on rows with weight 0.
      *reinterpret_cast<float2*>(params.scratch.o + index * dim + d) = {
          __fadd_rn(tile.o[part][column][2 * half], 0.0f), __fadd_rn(tile.o[part][column][2 * half + 1], 0.0f)};
    }
  }
}

template <typename T, int kDim, int kHalves>
__global__ void __launch_bounds__(128, 2) prefix_few_exact(const __grid_constant__ PrefixAttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = FewExactTile<T, kDim, kHalves>;
  const PrefixBlock<T, Tile::kRows> block(params);
  Tile tile;
  const TileBounds bounds = block.bounds();
  tile.open(shared, params.shape, params.segments[block.n], block.kv_head, bounds.first);
  tile.start(bounds, [&](int row) { return block.row_of(row); });
  tile.walk(bounds.limit);
  tile.store(block.rows - block.begin, params.scratch, [&](int row) { return block.state_of(row); });
}

// A block: one query, some heads, one segment.
template <bool kLowBit>
__global__ void __launch_bounds__(kRowsThreads, 4) prefix_rows(const __grid_constant__ PrefixAttentionParams params) {
  using Rows = AttentionRowsOf<kLowBit>;
  __shared__ typename Rows::Shared shared;
  const AttentionShape& shape = params.shape;
  const int query = blockIdx.x, n = blockIdx.z, dim = static_cast<int>(shape.head_dim);
  const int position = params.positions[query];
  Rows rows(shared, shape, params.q, query, blockIdx.y);
  see_segment(params.segments[n], first_seen_of(shape, position), tail_begin_of(position), &rows);
  rows.finish();
  const int64_t index = (n * shape.queries + query) * shape.heads + rows.head;
  if (threadIdx.x < rows.heads) {
    params.scratch.ml[2 * (index + threadIdx.x)] = shared.m[threadIdx.x];
    params.scratch.ml[2 * (index + threadIdx.x) + 1] = shared.l[threadIdx.x];
  }
  for (int i = threadIdx.x; i < rows.heads * dim; i += kRowsThreads) {
    params.scratch.o[index * dim + i] = rows.result(i / dim, i % dim);
  }
}

constexpr int kFoldThreads = 128;
constexpr int kFoldFloats = 16384;  // of o that a block has at once
constexpr int kMostParts = static_cast<int>(kMaxPrefixParts);
static_assert(kMostParts % 32 == 0);

// What the fold needs of a call: params with all segments are 8 KiB, which a launch copies.
struct FoldParams {
  AttentionShape shape;
  AttentionState state, scratch;
  int64_t segment_count;
  void* out;
};

// States that a block has at once; they are folded one such batch after the other.
__host__ __device__ constexpr int fold_batch(int dim) {
  return kFoldFloats / dim < kMostParts ? kFoldFloats / dim : kMostParts;
}

// The factors for the state to the left of a segment, and for the segment's state. A segment with weight 0, an empty
// one too, adds nothing. A segment with NaN weights makes the sums NaN.
struct FoldShared {
  float2 keep_add[kMostParts];
  float l[kMostParts], first_l;  // of the segments, and of the state before them
  float2 rotated_keep_add;       // for the state of all segments, once it is rotated back
  float rotated_l;               // after that fold
  alignas(16) float o[1];        // [fold_batch(), head_dim]
};
int fold_shared_bytes(const FoldParams& params) {
  const int dim = static_cast<int>(params.shape.head_dim);
  const int states = std::min(static_cast<int>(params.segment_count), fold_batch(dim));
  return static_cast<int>(sizeof(FoldShared)) + std::max(states, 1) * dim * 4;  // what is rotated has a row, too
}

// The same for states that have more copies than the block has threads.
template <int kBytes>
__device__ void fetch_long_states(const FoldParams& params, int begin, int count, float* to) {
  const int dim = static_cast<int>(params.shape.head_dim);
  const int64_t state = params.shape.queries * params.shape.heads * dim;
  for (int n = 0; n < count; ++n) {
    const float* const from = params.scratch.o + (begin + n) * state + int64_t{blockIdx.x} * dim;
    for (int d = threadIdx.x * (kBytes / 4); d < dim; d += kFoldThreads * (kBytes / 4)) {
      copy_cached<kBytes>(shared_address(to + n * dim + d), from + d);
    }
  }
}

// Copies the o of `count` states of one query head from `begin` on, kBytes per copy.
template <int kBytes>
__device__ inline void fetch_states(const FoldParams& params, int begin, int count, float* to) {
  const int dim = static_cast<int>(params.shape.head_dim);
  const int copies = dim * 4 / kBytes, at_once = kFoldThreads / copies;
  if (at_once == 0) return fetch_long_states<kBytes>(params, begin, count, to);
  const int first = threadIdx.x / copies, within = threadIdx.x % copies * (kBytes / 4);
  if (first >= at_once) return;
  const int64_t state = params.shape.queries * params.shape.heads * dim;
  const float* from = params.scratch.o + (begin + first) * state + int64_t{blockIdx.x} * dim + within;
  uint32_t into = shared_address(to + first * dim + within);
  for (int n = first; n < count; n += at_once) {
    copy_cached<kBytes>(into, from);
    from += at_once * state;
    into += at_once * dim * 4;
  }
}

// The largest maximum of the states up to this lane's. The maximum does not depend on the order, so no factor waits for
// another.
__device__ inline float scan_maximum(float m) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float left = __shfl_up_sync(~0u, m, distance);
    if (threadIdx.x % 32 >= distance) m = fmaxf(m, left);
  }
  return m;
}

// By the first warp. m: of the state that is folded into; returns the overall maximum.
__device__ inline float find_factors(FoldShared& shared, const float2* ml, int64_t states, int count, float m) {
  const int lane = threadIdx.x;
  float2 own[kMostParts / 32];
#pragma unroll
  for (int i = 0; i < kMostParts / 32; ++i) {
    own[i] = i * 32 + lane < count ? ml[(i * 32 + lane) * states] : float2{-INFINITY, 0.0f};
  }
#pragma unroll
  for (int i = 0; i < kMostParts / 32; ++i) {
    const float top = fmaxf(m, scan_maximum(own[i].x)), left = __shfl_up_sync(~0u, top, 1);
    const float keep = weight_of(__fsub_rn(lane == 0 ? m : left, top)), add = weight_of(__fsub_rn(own[i].x, top));
    shared.keep_add[i * 32 + lane] = isnan(own[i].y)         ? float2{1.0f, own[i].y}
                                     : own[i].x == -INFINITY ? float2{1.0f, 0.0f}
                                                             : float2{keep, add};
    shared.l[i * 32 + lane] = own[i].y;
    m = __shfl_sync(~0u, top, 31);
  }
  return m;
}

// Folds states [begin, begin + count) into an element of o and into l, side by side. from: the first one's element.
__device__ inline float2 fold_states(const FoldShared& shared, int begin, int count, const float* from, int stride,
                                     float2 into) {
#pragma unroll 8
  for (int n = 0; n < count; ++n) {
    const float2 factors = shared.keep_add[begin + n];
    const float o = __fmaf_rn(from[n * stride], factors.y, __fmul_rn(into.x, factors.x));
    const float l = __fmaf_rn(shared.l[begin + n], factors.y, __fmul_rn(into.y, factors.x));
    if (factors.y != 0.0f) into = {o, l};
  }
  return into;
}

__device__ inline void write_out(const FoldParams& params, int64_t index, float o, float l) {
  // + 0: a zero's sign must not depend on rows with weight 0.
  store_one(params.out, params.shape.type, index, __fadd_rn(__fdiv_rn(o, l), 0.0f));
}

// Multiplies o, of `dim` elements in shared memory, by the orthonormal Hadamard matrix. By all threads.
__device__ inline void rotate(float* o, int dim) {
  for (int half = 1; half < dim; half *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < dim / 2; i += kFoldThreads) {
      const int low = i / half * 2 * half + i % half;
      const float a = o[low], b = o[low + half];
      o[low] = __fadd_rn(a, b);
      o[low + half] = __fsub_rn(a, b);
    }
  }
  __syncthreads();
}

// A query head's state while states are folded into it: a thread has its columns of o, and l as all others do, so that
// none waits for another.
struct Folded {
  static constexpr int kColumns = kRowsDim / kFoldThreads;
  float o[kColumns], l;
};

// What the segments' states of int4 rows, folded into an empty one, are once they are rotated back: folded into the
// query's.
__device__ inline void fold_rotated(const FoldParams& params, FoldShared& shared, const Folded& folded,
                                    float segments_m) {
  const int dim = static_cast<int>(params.shape.head_dim);
  const int64_t to = blockIdx.x;
  if (threadIdx.x == 0) {
    float2* const into_ml = reinterpret_cast<float2*>(params.state.ml) + to;
    const float2 ml = *into_ml;
    const float l = folded.l, top = fmaxf(ml.x, segments_m);
    const float keep = weight_of(__fsub_rn(ml.x, top)), add = weight_of(__fsub_rn(segments_m, top));
    const float2 factors = isnan(l)                  ? float2{1.0f, l}
                           : segments_m == -INFINITY ? float2{1.0f, 0.0f}
                                                     : float2{keep, add};
    shared.rotated_keep_add = factors;
    shared.rotated_l = factors.y == 0.0f ? ml.y : __fmaf_rn(l, factors.y, __fmul_rn(ml.y, factors.x));
    *into_ml = {top, shared.rotated_l};
  }
  __syncthreads();  // all threads have finished with the states
#pragma unroll
  for (int i = 0; i < Folded::kColumns; ++i) {
    const int d = threadIdx.x + i * kFoldThreads;
    if (d < dim) shared.o[d] = folded.o[i];
  }
  rotate(shared.o, dim);
  const float norm = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(dim)));
  const float2 factors = shared.rotated_keep_add;
  for (int d = threadIdx.x; d < dim; d += kFoldThreads) {
    float* const into = params.state.o + to * dim + d;
    const float old = *into;
    const float sum = __fmaf_rn(__fmul_rn(shared.o[d], norm), factors.y, __fmul_rn(old, factors.x));
    *into = factors.y == 0.0f ? old : sum;
    if (params.out != nullptr) write_out(params, to * dim + d, *into, shared.rotated_l);
  }
}

// A block: one query head. Fetches a batch of states at once; then each thread folds its elements of o, and l.
template <bool kRotate>
__global__ void __launch_bounds__(kFoldThreads) fold_prefix(const __grid_constant__ FoldParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  FoldShared& shared = *reinterpret_cast<FoldShared*>(memory);
  const int count = static_cast<int>(params.segment_count), dim = static_cast<int>(params.shape.head_dim);
  const int64_t to = blockIdx.x;
  float* const into_o = params.state.o + to * dim;
  float2* const into_ml = reinterpret_cast<float2*>(params.state.ml) + to;
  float2 ml = {-INFINITY, 0.0f};
  Folded folded{};
  int begin = 0;
  do {
    const int batch = min(fold_batch(dim), count - begin);
    if (begin > 0) __syncthreads();  // all threads have finished with the batch before
    if (dim % 4 == 0) {
      fetch_states<16>(params, begin, batch, shared.o);
    } else {
      fetch_states<8>(params, begin, batch, shared.o);
    }
    commit_copies();
    if (begin == 0 && threadIdx.x < 32) {
      if (!kRotate) ml = *into_ml;
      if (threadIdx.x == 0) shared.first_l = ml.y;
      ml.x = find_factors(shared, reinterpret_cast<const float2*>(params.scratch.ml) + to,
                          params.shape.queries * params.shape.heads, count, ml.x);
    }
    wait_copies<0>();
    __syncthreads();
    const float l = begin == 0 ? shared.first_l : folded.l;
#pragma unroll
    for (int i = 0; i < Folded::kColumns; ++i) {
      const int d = threadIdx.x + i * kFoldThreads;
      if (d >= dim && i > 0) break;
      const bool has = d < dim;
      if (begin == 0 && !kRotate && has) folded.o[i] = into_o[d];
      const float2 both = fold_states(shared, begin, batch, shared.o + (has ? d : 0), dim, {folded.o[i], l});
      folded.o[i] = both.x;
      folded.l = both.y;
    }
    begin += batch;
  } while (begin < count);
  if constexpr (kRotate) {
    fold_rotated(params, shared, folded, ml.x);
  } else {
#pragma unroll
    for (int i = 0; i < Folded::kColumns; ++i) {
      const int d = threadIdx.x + i * kFoldThreads;
      if (d >= dim) break;
      into_o[d] = folded.o[i];
      if (params.out != nullptr) write_out(params, to * dim + d, folded.o[i], folded.l);
      if (d == 0) *into_ml = {ml.x, folded.l};
    }
  }
}

template <typename Q, typename T, int kDim>
void launch_tiles(const PrefixAttentionParams& params, const LaunchStream& on) {
  // Few rows use smaller blocks, which compute each row identically. With heads of 128 the one for few rows gains
  // nothing.
  if constexpr (kDim > 128 && !kCasts<Q, T>) {
    const auto launch_few = [&](auto halves) {
      using Tile = FewExactTile<T, kDim, halves.value>;
      launch(prefix_few_exact<T, kDim, halves.value>, "prefix_few_exact", prefix_grid<Tile>(params), Tile::kThreads,
             Tile::kSharedBytes, params, on);
    };
    const int64_t rows = prefix_rows_of(params.shape);
    if (rows <= 8) return launch_few(std::integral_constant<int, 1>());
    if (rows <= 16) return launch_few(std::integral_constant<int, 2>());
  }
  const auto launch_block = [&](auto large) {
    using Tile = PrefixTile<Q, T, kDim, large.value>;
    launch(prefix_tiles<Q, T, kDim, large.value>, "prefix_tiles", prefix_grid<Tile>(params), Tile::kThreads,
           Tile::kSharedBytes, params, on);
  };
  if (prefix_rows_of(params.shape) <= PrefixTile<Q, T, kDim, false>::kRows) return launch_block(std::false_type());
  launch_block(std::true_type());
}

template <typename Q, typename T>
void launch_tiles(const PrefixAttentionParams& params, const LaunchStream& on) {
  if (params.shape.head_dim <= 64) return launch_tiles<Q, T, 64>(params, on);
  if (params.shape.head_dim <= 128) return launch_tiles<Q, T, 128>(params, on);
  launch_tiles<Q, T, 256>(params, on);
}

void segment_states(const PrefixAttentionParams& params, const LaunchStream& on) {
  const AttentionShape& shape = params.shape;
  if (has_low_bit_tiles(shape)) return low_bit_segment_states(params, on);
  if (has_wide_tiles(shape)) return wide_segment_states(params, on);
  if (!has_tiles(shape)) {
    const bool low = low_bit(shape.k_type) || low_bit(shape.v_type);
    const dim3 grid(static_cast<unsigned>(shape.queries),
                    static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)),
                    static_cast<unsigned>(params.segment_count));
    return launch(low ? prefix_rows<true> : prefix_rows<false>, "prefix_rows", grid, kRowsThreads, 0, params, on);
  }
  if (shape.k_type == DType::kBF16) return launch_tiles<__nv_bfloat16, __nv_bfloat16>(params, on);
  if (shape.type == DType::kBF16) return launch_tiles<__nv_bfloat16, __half>(params, on);
  launch_tiles<__half, __half>(params, on);
}

}  // namespace

void prefix_attention(const PrefixAttentionParams& params, Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  const bool rotated = params.shape.k_type == DType::kInt4 && params.segment_count > 0;
  if (params.segment_count > 0) {
    const LaunchStream states_on = params.beside_tail ? LaunchStream(on, on.beside()) : LaunchStream(on);
    segment_states(rotated ? rotate_queries(params, states_on) : params, states_on);
    if (params.beside_tail) on.join();
  }
  const dim3 states(static_cast<unsigned>(params.shape.queries * params.shape.heads));
  const FoldParams fold{params.shape, params.state, params.scratch, params.segment_count, params.out};
  launch(rotated ? fold_prefix<true> : fold_prefix<false>, "fold_prefix", states, kFoldThreads, fold_shared_bytes(fold),
         fold, on);
}

}  // namespace headrace::kernels::cuda
