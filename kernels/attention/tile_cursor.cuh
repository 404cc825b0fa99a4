// The tiles of K and V that an attention block walks. Device code, internal to kernels/attention.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/op.h"

namespace headrace::kernels::cuda {

enum class Span { kSegment, kList };

// One KV head's tiles of one segment or of a list of segments, up to position `limit`.
template <typename T, Span kSpan>
struct TileCursor {
  const KvSegment* segments;
  int count, kv_head, dim, limit;
  int next = 0;               // segment
  int position = 0, end = 0;  // the tile's first row; the end of the segment's rows
  const T *k = nullptr, *v = nullptr;

  __device__ TileCursor(const KvSegment* list, int segment_count, int head, int head_dim, int most)
      : segments(list), count(segment_count), kv_head(head), dim(head_dim), limit(most) {
    open();
  }
  __device__ bool done() const { return position >= end; }
  __device__ void advance() {
    position += kPrefixTile;
    k += kPrefixTile * dim;
    v += kPrefixTile * dim;
    if (kSpan == Span::kList && done()) open();
  }

 private:
  __device__ void open() {
    while (done() && next < count) {
      const KvSegment& segment = segments[next++];
      const int64_t head = int64_t{kv_head} * segment.stride_rows * dim;
      k = static_cast<const T*>(segment.k) + head;
      v = static_cast<const T*>(segment.v) + head;
      position = segment.position;
      end = min(segment.position + segment.rows, limit);
    }
  }
};

// Whether any of eight elements of T has an all-ones exponent: adding one to it carries into the sign bit.
template <typename T>
__device__ inline bool not_finite(const uint4& words) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  constexpr uint32_t kExponent = kHalf ? 0x7c007c00 : 0x7f807f80, kOne = kHalf ? 0x04000400 : 0x00800080;
  const uint32_t carried = ((words.x & kExponent) + kOne) | ((words.y & kExponent) + kOne) |
                           ((words.z & kExponent) + kOne) | ((words.w & kExponent) + kOne);
  return (carried & 0x80008000) != 0;
}

}  // namespace headrace::kernels::cuda
