// Prefill's flash attention (Dao et al. 2022) on tensor cores: a block of 128 queries of one head against K and V in
// parts of 32 rows. mma.sync m16n8k16 with fp32 sums; weights are rounded to the element type for the product with V,
// their sum is not. Device code, internal to kernels/attention.
//
// An H200 has registers for two such warps a scheduler, so what a warp waits for is what limits it. A warp multiplies q
// by the keys of a part, then the weights of the part before it by their values, and the compiler places the part's
// softmax between the latter products. It seeks no maximum: a row's weights are relative to a score that was the
// largest of a part, and only a weight that is too large in that scale makes the warp look for a new one.
//
// A row's bits depend only on the row and on what it sees. Each row walks the parts in order by itself; unseen keys
// have weight exactly 0, and a part without a seen key adds 0. Whether a weight is too large is decided by the row's
// own weights. A weight of 0 does not cancel a value that is not finite, so a part that some row of the block does not
// see in full is screened for such values first. With a window, a row begins with the first part that it sees some of,
// as if there were none before it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/op.h"
#include "kernels/attention/prefill_ring.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/attention/tile.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// kDim: head_dim if kWhole, otherwise the next larger instantiation; columns beyond head_dim are zero. Q: the type of
// q, which is converted to T.
template <typename Q, typename T, int kDim, bool kWhole>
struct PrefillTile : PrefillRing<Q, T, kDim, kWhole> {
  using Ring = PrefillRing<Q, T, kDim, kWhole>;
  using Ring::advance;
  using Ring::fetch;
  using Ring::kChunks;
  using Ring::kKeys;
  using Ring::kLate;
  using Ring::kMTiles;
  using Ring::kPartBytes;
  using Ring::kRowBytes;
  using Ring::kRows;
  using Ring::kSteps;
  using Ring::kThreads;
  using Ring::kWarpRows;
  using Ring::limit;
  using Ring::params;
  using Ring::place;
  using Ring::ring_offset;
  using Ring::scale_of;
  static constexpr int kCopyStep = kSteps - 2;  // of the scores, at which a part's copies start; see kHeldSteps
  static constexpr int kPoisonAt = Ring::kEnd, kSharedBytes = kPoisonAt + 4;
  static_assert(kSharedBytes <= 99 * 1024);  // the limit of sm_86 and sm_89
  // Of the sum of one thread's weights of a row in a part; finite in f16.
  static constexpr float kMaxWeight = 4096.0f;

  const int first, end, begin;  // queries' positions are [first, end); the block's rows begin at `begin`

  // For rows g and g + 8 of each tile of 16 rows, where g = lane / 4. shift: the base of the weights' exponents,
  // negated; l and part_l: sums of this thread's columns.
  float o[kMTiles][kDim / 8][4] = {};
  float shift[kMTiles][2], l[kMTiles][2] = {};
  float s[kMTiles][kKeys / 8][4], part_l[kMTiles][2];  // scores of the last part
  uint32_t p[kMTiles][kKeys / 16][4] = {};             // weights of the last part, as fragments
  uint32_t k_lane, v_lane;                             // this lane's addresses in the ring's first part

  __device__ PrefillTile(const PrefillAttentionParams& of, const void* shared_memory)
      : Ring(of, shared_address(shared_memory), blockIdx.x, min(begin_of(of) + kRows, end_of(of))),
        first(first_of(of)),
        end(end_of(of)),
        begin(begin_of(of)) {
    k_lane = find_k_lane(threadIdx.x);
    v_lane = find_v_lane(threadIdx.x);
    for (int i = 0; i < 2 * kMTiles; ++i) shift[i / 2][i % 2] = INFINITY;
  }

  // Processes all parts. Ends without copies in flight.
  __device__ void walk() {
    this->load([&](int tile, int half) {
      const int64_t query = query_position(tile, half) - first;
      return static_cast<const unsigned short*>(params.q) + query * params.shape.q_stride +
             this->head * params.shape.head_dim;
    });
    int part = first_seen_of(params.shape, max(begin, first)) / kKeys;
    this->clear_ring(part);
    this->open_first(part);
    fetch(part + 1), advance();
#pragma unroll 1
    while (part * kKeys < limit) {
      // Parts that every row sees, and two parts later a whole one of the same segment to copy: without branches.
      int plain = is_edge(part) ? 0 : min(max(begin, first) / kKeys, min(this->segment_end, limit) / kKeys - 2) - part;
      bool large = false;
#pragma unroll 1
      for (; plain > 0; --plain, ++part) {
        large = process<true, false>(part);
        if (large) break;
        finish_part();
      }
      if (!large) large = kLate || is_edge(part) ? process<false, true>(part) : process<false, false>(part);
      if (large) raise();
      finish_part();
      ++part;
    }
    wait_copies<0>();
    if constexpr (kLate) {
      __syncthreads();  // the values of the last part are loaded
      if (is_partial(part - 1)) screen(part - 1);
    }
    add_values(part - 1);
  }

  // Completes the rows' sums.
  __device__ float sum(int tile, int half) const { return quad_sum(l[tile][half]); }
  __device__ int position_of(int tile, int half) const {
    const int thread = thread_now();
    return begin + thread / 32 * kWarpRows + tile * 16 + half * 8 + thread % 32 / 4;
  }
  // Of rows without a query: a query's.
  __device__ int query_position(int tile, int half) const { return max(first, min(position_of(tile, half), end - 1)); }

 private:
  __device__ static int first_of(const PrefillAttentionParams& of) { return static_cast<int>(of.first_position); }
  __device__ static int end_of(const PrefillAttentionParams& of) {
    return first_of(of) + static_cast<int>(of.shape.queries);
  }
  __device__ static int begin_of(const PrefillAttentionParams& of) {
    return (first_of(of) / kRows + static_cast<int>(gridDim.y - 1 - blockIdx.y)) * kRows;
  }

  // With a large head there are no registers to keep these in.
  __device__ uint32_t find_k_lane(int thread) const {
    return this->shared + Ring::kRingAt + place(thread / 16 % 2 * 8 + thread % 8, thread / 8 % 2);
  }
  __device__ uint32_t find_v_lane(int thread) const {
    return this->shared + Ring::kRingAt + place(thread % 16, thread / 16 % 2);
  }
  // The address of a lane's chunk two chunks times `step` further.
  __device__ static uint32_t at_step(uint32_t lane_address, int step) {
    return (lane_address ^ (step % 4 << 5)) + step / 4 * 128;
  }
  // Multiplies the previous part's weights by its values, and converts this part's scores to weights. kCopy: the part
  // after the next is a whole one of the segment in use. kEdge: is_edge(). Returns whether a weight of the warp is too
  // large.
  template <bool kCopy, bool kEdge>
  __device__ bool process(int part) {
    wait_copies<1>();
    __syncthreads();  // this part is loaded, and all threads have finished with the one before the last
    if constexpr (!kCopy) fetch(part + 2);
    if (kEdge && is_partial(part - (kLate ? 1 : 0))) screen(part - (kLate ? 1 : 0));
    score<kCopy>(part);
    add_values(part - 1);
    if constexpr (kEdge) mask(part);
    bool fine = true;
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      weigh(i / 2, i % 2);
      if (kEdge && (part + 1) * kKeys <= first_of(i / 2, i % 2)) drop(i / 2, i % 2);
      fine &= part_l[i / 2][i % 2] <= kMaxWeight;
    }
    return !__all_sync(~0u, fine);
  }
  __device__ void finish_part() {
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) l[i / 2][i % 2] = __fadd_rn(l[i / 2][i % 2], part_l[i / 2][i % 2]);
    advance();
  }

  // s = q k^T, unscaled. kCopy: the part after the next is copied meanwhile.
  template <bool kCopy>
  __device__ void score(int part) {
    const uint32_t k = (kLate ? find_k_lane(thread_now()) : k_lane) + ring_offset(part);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kMTiles][4];
      this->query_of(step, a);
      if (kCopy && step == kCopyStep) this->fetch_whole(part + 2);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];  // keys 0 to 7: columns 0 to 7, 8 to 15; keys 8 to 15: the same
        load_matrices(b, at_step(k, step) + n * 16 * kRowBytes);
#pragma unroll
        for (int i = 0; i < 4 * kMTiles && step == 0; ++i) s[i / 4][2 * n][i % 4] = s[i / 4][2 * n + 1][i % 4] = 0.0f;
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          multiply(s[tile][2 * n], a[tile], b[0], b[1], T{});
          multiply(s[tile][2 * n + 1], a[tile], b[2], b[3], T{});
        }
      }
    }
  }
  // o += p v.
  __device__ void add_values(int part) {
    const uint32_t v = (kLate ? find_v_lane(thread_now()) : v_lane) + ring_offset(part) + kPartBytes;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        uint32_t b[4];  // columns 0 to 7: keys 0 to 7, 8 to 15; columns 8 to 15: the same
        load_transposed(b, at_step(v, n) + step * 16 * kRowBytes);
#pragma unroll
        for (int tile = 0; tile < kMTiles; ++tile) {
          multiply(o[tile][2 * n], p[tile][step], b[0], b[1], T{});
          multiply(o[tile][2 * n + 1], p[tile][step], b[2], b[3], T{});
        }
      }
    }
  }

  __device__ void mask(int part) {
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int position = query_position(tile, half), seen = first_of(tile, half);
        const int column = part * kKeys + thread_now() % 4 * 2;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = column + n * 8 + i;
            if (key < seen || key > position) s[tile][n][2 * half + i] = -INFINITY;
          }
        }
      }
    }
  }
  // A row's weights of the part, relative to its shift, and their sum. Before the first raise() the sum is infinite.
  __device__ void weigh(int tile, int half) {
    const float scale = scale_of(tile, half);
    float all = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float weights[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weights[i] = exp2_fast(__fmaf_rn(s[tile][n][2 * half + i], scale, shift[tile][half]));
        all = __fadd_rn(all, weights[i]);
      }
      p[tile][n / 2][n % 2 * 2 + half] = pack(weights[0], weights[1], T{});
    }
    part_l[tile][half] = all;
  }
  // For a row that sees nothing of the part.
  __device__ void drop(int tile, int half) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) p[tile][n / 2][n % 2 * 2 + half] = 0;
    part_l[tile][half] = 0.0f;
  }
  // Makes the part's largest score the base of the rows that have a weight that is too large.
  __device__ void raise() {
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t lanes = __ballot_sync(~0u, !(part_l[tile][half] <= kMaxWeight));
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(s[tile][n][2 * half], s[tile][n][2 * half + 1]));
        top = quad_max(top);
        if ((lanes >> (thread_now() % 32 & 28) & 15) == 0) continue;  // of the row's four lanes
        // All scores NaN or -inf: these have no maximum, and -inf - -inf would be NaN.
        const float to = top == -INFINITY ? 0.0f : -__fmul_rn(top, scale_of(tile, half));
        const float keep = exp2_fast(__fsub_rn(to, shift[tile][half]));
        shift[tile][half] = to;
        weigh(tile, half);
        l[tile][half] = __fmul_rn(l[tile][half], keep);
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          o[tile][n][2 * half] = __fmul_rn(o[tile][n][2 * half], keep);
          o[tile][n][2 * half + 1] = __fmul_rn(o[tile][n][2 * half + 1], keep);
        }
      }
    }
  }

  // Replaces values that are not finite by 0, their contribution to rows that do not see them; rows that do get a NaN
  // as sum of weights. Called by all threads once the part's values are loaded.
  __device__ void screen(int part) {
    constexpr int kPartChunks = kKeys * kChunks;
    const uint32_t v = this->values_at(part);
    bool found = false;
#pragma unroll 1
    for (int i = thread_now(); i < kPartChunks; i += kThreads) found |= not_finite<T>(load_words(v + i * 16));
    if (!__syncthreads_or(found)) return;
    if (thread_now() == 0) store_word(this->shared + kPoisonAt, 0);
    __syncthreads();
#pragma unroll 1
    for (int i = thread_now(); i < kPartChunks; i += kThreads) {  // chunks are permuted only within their rows
      if (!not_finite<T>(load_words(v + i * 16))) continue;
      store_zeros(v + i * 16);
      set_bits(this->shared + kPoisonAt, 1u << (i / kChunks));
    }
    __syncthreads();
    const auto poisoned = static_cast<uint32_t>(load_word(this->shared + kPoisonAt));
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      const uint32_t before = rows_below(part, first_of(i / 2, i % 2));
      const uint32_t seen = rows_below(part, query_position(i / 2, i % 2) + 1) & ~before;
      if ((poisoned & seen) != 0) l[i / 2][i % 2] = __int_as_float(0x7fffffff);
    }
  }
  // The bits of the part's rows before `position`.
  __device__ static uint32_t rows_below(int part, int position) {
    const int count = position - part * kKeys;
    return count >= kKeys ? ~0u : count <= 0 ? 0 : (1u << count) - 1;
  }
  static_assert(kKeys == 32);

  // The first position that a row sees, and the first that all rows of the block see.
  __device__ int first_of(int tile, int half) const { return first_seen_of(params.shape, query_position(tile, half)); }
  __device__ int common_first() const { return first_seen_of(params.shape, limit - 1); }
  // Whether some row does not see all of a part.
  __device__ bool is_partial(int part) const {
    return (part + 1) * kKeys > max(first, begin) + 1 || max(part, 0) * kKeys < common_first();
  }
  // Whether process() has a part to mask or to screen.
  __device__ bool is_edge(int part) const { return is_partial(part) || (kLate && is_partial(part - 1)); }
};

}  // namespace headrace::kernels::cuda
