// How a block of prefill_tile.cuh reads K and V: parts of 32 rows of a list of segments, which cp.async copies to a
// ring in shared memory two parts ahead. Device code, internal to kernels/attention.
#pragma once

#include <cstdint>

#include "kernels/attention/prefill_queries.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/segment.h"

namespace headrace::kernels::cuda {

template <typename Q, typename T, int kDim, bool kWhole>
struct PrefillRing : PrefillQueries<Q, T, kDim, kWhole> {
  using Queries = PrefillQueries<Q, T, kDim, kWhole>;
  using Queries::kThreads;
  // Rows of a part; parts in shared memory. There is room for three parts of a large head, so the values of a part are
  // copied with the keys of the next one.
  static constexpr int kKeys = 32, kRing = kDim <= 128 ? 4 : 3;
  static constexpr bool kLate = kRing == 3;
  static constexpr int kChunks = kDim / 8;  // a chunk: 16 bytes
  static constexpr int kRowBytes = kDim * 2, kPartBytes = kKeys * kRowBytes;
  static constexpr int kRingAt = Queries::kBytes, kEnd = kRingAt + kRing * 2 * kPartBytes;  // of shared memory
  static_assert(kChunks % 8 == 0);
  static constexpr int kRowsAtOnce = kThreads / kChunks, kCopies = kKeys / kRowsAtOnce;  // of a thread

  const PrefillAttentionParams& params;
  const int head, limit;  // of the rows that the block sees
  const uint32_t shared;
  // Copies: from where the next part, to where in the ring's first part; the list's next segment, the end of this one.
  const T *k_from = nullptr, *v_from = nullptr;
  int segment = 0, segment_end = 0;
  uint32_t copy_to;

  __device__ PrefillRing(const PrefillAttentionParams& of, uint32_t shared_memory, int query_head, int rows_end)
      : Queries(of.shape, shared_memory), params(of), head(query_head), limit(rows_end), shared(shared_memory) {
    copy_to = find_copy_to(threadIdx.x);
  }

  // Chunks of a row are permuted by the row's number, so that ldmatrix reads 8 rows from different banks.
  __device__ static uint32_t place(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
  // This lane's addresses. With a large head there are no registers to keep them in.
  __device__ uint32_t find_copy_to(int thread) const {
    return shared + kRingAt + place(thread / kChunks, thread % kChunks);
  }
  __device__ uint32_t copies_to() const { return kLate ? find_copy_to(thread_now()) : copy_to; }
  __device__ static uint32_t ring_offset(int part) {
    return static_cast<uint32_t>(part + kRing) % kRing * (2 * kPartBytes);
  }

  // The values before the first part, which it multiplies by weights of 0; and columns beyond head_dim, which no copy
  // writes.
  __device__ void clear_ring(int part) const {
    const uint32_t begin = kWhole ? values_at(part - 1) : shared + kRingAt;
    const uint32_t end = kWhole ? begin + kPartBytes : shared + kEnd;
    for (uint32_t at = begin + threadIdx.x * 16; at < end; at += kThreads * 16) store_zeros(at);
    __syncthreads();
  }
  __device__ uint32_t values_at(int part) const { return shared + kRingAt + ring_offset(part) + kPartBytes; }

  // Opens the segment that holds the first part, and starts the copies of that part.
  __device__ void open_first(int part) {
    do open_segment();
    while (segment_end <= part * kKeys);
    const int64_t skipped = int64_t{part * kKeys - params.segments[segment - 1].position} * row_elements();
    k_from += skipped;
    v_from += skipped;
    copy_part(part, k_from, 0);
    if constexpr (!kLate) copy_part(part, v_from, kPartBytes);
    commit_copies();
    advance();
  }
  // Starts the copies of a part, if there is one. One group of copies, also if it is empty.
  __device__ void fetch(int part) {
    if constexpr (kLate) {
      copy_part(part - 1, v_from, kPartBytes);
      v_from += kKeys * row_elements();
    }
    if (part * kKeys == segment_end && segment_end < limit) open_segment();
    copy_part(part, k_from, 0);
    if constexpr (!kLate) copy_part(part, v_from, kPartBytes);
    commit_copies();
  }
  // Copies the rows of a part to an offset in its place in the ring. Rows that no query sees become zero.
  __device__ void copy_part(int part, const T* from, uint32_t offset) {
    const int position = part * kKeys;
    if (position >= limit) return;
    const int dim = row_elements(), row = thread_now() / kChunks;
#pragma unroll
    for (int i = 0; i < kCopies && has_chunk(); ++i) {
      const int bytes = position + row + i * kRowsAtOnce < limit ? 16 : 0;
      copy_async(copies_to() + ring_offset(part) + i * kRowsAtOnce * kRowBytes + offset, from + i * kRowsAtOnce * dim,
                 bytes);
    }
  }
  // The same as fetch() for a whole part of the segment in use.
  __device__ void fetch_whole(int part) {
    const uint32_t first = copies_to(), to = first + ring_offset(part);
    if (has_chunk()) {
      copy_rows<0>(to, k_from);
      copy_rows<0>((kLate ? first + ring_offset(part - 1) : to) + kPartBytes, v_from);
    }
    if constexpr (kLate) v_from += kKeys * row_elements();
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
    if constexpr (!kLate) v_from += kKeys * row_elements();
  }
};

}  // namespace headrace::kernels::cuda
