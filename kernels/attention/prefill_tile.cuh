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
// see in full is screened for such values first.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/op.h"
#include "kernels/attention/prefill_queries.cuh"
#include "kernels/attention/tile.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// kDim: head_dim if kWhole, otherwise the next larger instantiation; columns beyond head_dim are zero. Q: the type of
// q, which is converted to T.
template <typename Q, typename T, int kDim, bool kWhole>
struct PrefillTile : PrefillQueries<Q, T, kDim, kWhole> {
  using Queries = PrefillQueries<Q, T, kDim, kWhole>;
  using Queries::kRows;
  using Queries::kSteps;
  using Queries::kThreads;
  using Queries::kWarpRows;
  using Queries::scale_of;
  using Queries::thread_now;
  static constexpr int kKeys = 32, kRing = 4;  // rows of a part; parts in shared memory
  static constexpr int kChunks = kDim / 8;     // a chunk: 16 bytes
  static constexpr int kRowBytes = kDim * 2, kPartBytes = kKeys * kRowBytes;
  static constexpr int kCopyStep = kSteps - 2;  // of the scores, at which a part's copies start; see kHeldSteps
  static constexpr int kRingAt = Queries::kBytes, kPoisonAt = kRingAt + kRing * 2 * kPartBytes;
  static constexpr int kSharedBytes = kPoisonAt + 4;
  static_assert(kSharedBytes <= 99 * 1024);  // the limit of sm_86 and sm_89
  static_assert(kChunks % 8 == 0);
  static constexpr int kRowsAtOnce = kThreads / kChunks, kCopies = kKeys / kRowsAtOnce;  // of a thread
  // Of the sum of one thread's weights of a row in a part; finite in f16.
  static constexpr float kMaxWeight = 4096.0f;

  const PrefillAttentionParams& params;
  const int head, first, end, begin;  // queries' positions are [first, end); the block's rows begin at `begin`
  const int limit;                    // of the rows that the block sees
  const uint32_t shared;

  // Copies: from where the next part, to where in the ring's first part; the list's next segment, the end of this one.
  const T *k_from = nullptr, *v_from = nullptr;
  uint32_t copy_to;
  int segment = 0, segment_end = 0;

  // For rows g and g + 8 of each tile of 16 rows, where g = lane / 4. shift: the base of the weights' exponents,
  // negated; l and part_l: sums of this thread's columns.
  float o[2][kDim / 8][4] = {};
  float shift[2][2], l[2][2] = {};
  float s[2][kKeys / 8][4], part_l[2][2];  // scores of the last part
  uint32_t p[2][kKeys / 16][4] = {};       // weights of the last part, as fragments
  uint32_t k_lane, v_lane;                 // this lane's address in the ring's first part

  __device__ PrefillTile(const PrefillAttentionParams& of, const void* shared_memory)
      : Queries(of.shape, shared_address(shared_memory)),
        params(of),
        head(blockIdx.x),
        first(static_cast<int>(of.first_position)),
        end(first + static_cast<int>(of.shape.queries)),
        begin((first / kRows + static_cast<int>(gridDim.y - 1 - blockIdx.y)) * kRows),
        limit(min(begin + kRows, end)),
        shared(shared_address(shared_memory)) {
    const int thread = threadIdx.x, lane = thread % 32;
    copy_to = shared + kRingAt + place(thread / kChunks, thread % kChunks);
    k_lane = shared + kRingAt + place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    v_lane = shared + kRingAt + place(lane % 16, lane / 16);
    if (thread == 0) store_word(shared + kPoisonAt, INT32_MAX);
    for (int i = 0; i < 4; ++i) shift[i / 2][i % 2] = INFINITY;
  }

  // Processes all parts. Ends without copies in flight.
  __device__ void walk() {
    this->load([&](int tile, int half) {
      const int64_t query = query_position(tile, half) - first;
      return static_cast<const unsigned short*>(params.q) + query * params.shape.q_stride +
             head * params.shape.head_dim;
    });
    clear_ring();
    fetch(0), advance();
    fetch(1), advance();
    const int parts = (limit + kKeys - 1) / kKeys, seen_by_all = max(begin, first) / kKeys;
    int part = 0;
#pragma unroll 1
    while (part < parts) {
      // Parts that every row sees, and two parts later a whole one of the same segment to copy: without branches.
      int plain = min(seen_by_all, min(segment_end, limit) / kKeys - 2) - part;
      bool large = false;
#pragma unroll 1
      for (; plain > 0; --plain, ++part) {
        large = process<true>(part);
        if (large) break;
        finish_part();
      }
      if (!large) large = process<false>(part);
      if (large) raise();
      finish_part();
      ++part;
    }
    add_values(part - 1);
    wait_copies<0>();
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
  // Chunks of a row are permuted by the row's number, so that ldmatrix reads 8 rows from different banks.
  __device__ static uint32_t place(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
  // The address of a lane's chunk two chunks times `step` further.
  __device__ static uint32_t at_step(uint32_t lane_address, int step) {
    return (lane_address ^ (step % 4 << 5)) + step / 4 * 128;
  }
  __device__ static uint32_t ring_offset(int part) { return static_cast<uint32_t>(part) % kRing * (2 * kPartBytes); }

  // The values before part 0, which it multiplies by weights of 0; and columns beyond head_dim, which no copy writes.
  __device__ void clear_ring() const {
    const uint32_t begin = kWhole ? values_at(-1) : shared + kRingAt;
    for (uint32_t at = begin + threadIdx.x * 16; at < shared + kPoisonAt; at += kThreads * 16) store_zeros(at);
    __syncthreads();
  }
  __device__ uint32_t values_at(int part) const { return shared + kRingAt + ring_offset(part) + kPartBytes; }

  // Starts the copies of a part, if there is one. Rows that no query sees become zero. One group of copies, also if it
  // is empty.
  __device__ void fetch(int part) {
    const int position = part * kKeys;
    if (position < limit) {
      if (position == segment_end) open_segment();
      const int dim = row_elements(), row = thread_now() / kChunks;
#pragma unroll
      for (int i = 0; i < kCopies && has_chunk(); ++i) {
        const int bytes = position + row + i * kRowsAtOnce < limit ? 16 : 0;
        const uint32_t to = copy_to + ring_offset(part) + i * kRowsAtOnce * kRowBytes;
        copy_async(to, k_from + i * kRowsAtOnce * dim, bytes);
        copy_async(to + kPartBytes, v_from + i * kRowsAtOnce * dim, bytes);
      }
    }
    commit_copies();
  }
  // The same for a whole part of the segment in use.
  __device__ void fetch_whole(int part) {
    const uint32_t to = copy_to + ring_offset(part);
    if (has_chunk()) {
      copy_rows<0>(to, k_from);
      copy_rows<0>(to + kPartBytes, v_from);
    }
    commit_copies();
  }
  template <int kI>
  __device__ void copy_rows(uint32_t to, const T* from) const {
    if constexpr (kI < kCopies) {
      if constexpr (kWhole) {
        copy_at<kI * kRowsAtOnce * kRowBytes, kI * kRowsAtOnce * kRowBytes>(to, from);
      } else {
        copy_at<kI * kRowsAtOnce * kRowBytes, 0>(to, from + kI * kRowsAtOnce * row_elements());
      }
      copy_rows<kI + 1>(to, from);
    }
  }
  // Whether this thread's chunk is a part of the rows.
  __device__ bool has_chunk() const { return kWhole || thread_now() % kChunks * 8 < row_elements(); }
  __device__ int row_elements() const { return kWhole ? kDim : static_cast<int>(params.shape.head_dim); }
  __device__ void open_segment() {
    const KvSegment& from = params.segments[segment++];
    const int kv_head = head / static_cast<int>(params.shape.heads / params.shape.kv_heads), thread = thread_now();
    const int64_t row = int64_t{kv_head} * from.stride_rows + thread / kChunks;
    const int64_t offset = row * row_elements() + thread % kChunks * 8;
    k_from = static_cast<const T*>(from.k) + offset;
    v_from = static_cast<const T*>(from.v) + offset;
    segment_end = from.position + from.rows;
  }
  __device__ void advance() {
    k_from += kKeys * row_elements();
    v_from += kKeys * row_elements();
  }

  // Multiplies the previous part's weights by its values, and converts this part's scores to weights. kPlain: every row
  // sees the part. Returns whether a weight of the warp is too large.
  template <bool kPlain>
  __device__ bool process(int part) {
    wait_copies<1>();
    __syncthreads();  // this part is loaded, and all threads have finished with the one before the last
    if constexpr (!kPlain) {
      fetch(part + 2);
      if ((part + 1) * kKeys > max(first, begin) + 1) screen(part);
    }
    score<kPlain>(part);
    add_values(part - 1);
    if constexpr (!kPlain) mask(part);
    bool fine = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weigh(i / 2, i % 2);
      fine &= part_l[i / 2][i % 2] <= kMaxWeight;
    }
    return !__all_sync(~0u, fine);
  }
  __device__ void finish_part() {
#pragma unroll
    for (int i = 0; i < 4; ++i) l[i / 2][i % 2] = __fadd_rn(l[i / 2][i % 2], part_l[i / 2][i % 2]);
    advance();
  }

  // s = q k^T, unscaled. kCopy: the part after the next is copied meanwhile.
  template <bool kCopy>
  __device__ void score(int part) {
    const uint32_t k = k_lane + ring_offset(part);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[2][4];
      this->query_of(step, a);
      if (kCopy && step == kCopyStep) fetch_whole(part + 2);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];  // keys 0 to 7: columns 0 to 7, 8 to 15; keys 8 to 15: the same
        load_matrices(b, at_step(k, step) + n * 16 * kRowBytes);
#pragma unroll
        for (int i = 0; i < 8 && step == 0; ++i) s[i / 4][2 * n][i % 4] = s[i / 4][2 * n + 1][i % 4] = 0.0f;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          multiply(s[tile][2 * n], a[tile], b[0], b[1], T{});
          multiply(s[tile][2 * n + 1], a[tile], b[2], b[3], T{});
        }
      }
    }
  }
  // o += p v.
  __device__ void add_values(int part) {
    const uint32_t v = v_lane + ring_offset(part) + kPartBytes;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        uint32_t b[4];  // columns 0 to 7: keys 0 to 7, 8 to 15; columns 8 to 15: the same
        load_transposed(b, at_step(v, n) + step * 16 * kRowBytes);
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          multiply(o[tile][2 * n], p[tile][step], b[0], b[1], T{});
          multiply(o[tile][2 * n + 1], p[tile][step], b[2], b[3], T{});
        }
      }
    }
  }

  __device__ void mask(int part) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int position = query_position(tile, half), column = part * kKeys + thread_now() % 4 * 2;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (column + n * 8 + i > position) s[tile][n][2 * half + i] = -INFINITY;
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
  // Makes the part's largest score the base of the rows that have a weight that is too large.
  __device__ void raise() {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
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
    const uint32_t v = values_at(part);
    bool found = false;
#pragma unroll 1
    for (int i = thread_now(); i < kPartChunks; i += kThreads) found |= not_finite<T>(load_words(v + i * 16));
    if (!__syncthreads_or(found)) return;
#pragma unroll 1
    for (int i = thread_now(); i < kPartChunks; i += kThreads) {  // chunks are permuted only within their rows
      if (!not_finite<T>(load_words(v + i * 16))) continue;
      store_zeros(v + i * 16);
      lower_word(shared + kPoisonAt, part * kKeys + i / kChunks);
    }
    __syncthreads();
    const int poisoned = load_word(shared + kPoisonAt);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (query_position(i / 2, i % 2) >= poisoned) l[i / 2][i % 2] = __int_as_float(0x7fffffff);
    }
  }
};

}  // namespace headrace::kernels::cuda
