// The tiles of K and V that an attention block walks. Device code, internal to kernels/attention.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/op.h"

namespace headrace::kernels::cuda {

// One KV head's tiles of a segment: from the tile that holds position `first`, or the first one, up to position
// `limit`.
template <typename T, int kKeys>
struct TileCursor {
  int dim, position, end;  // the tile's first row; the end of the rows
  const T *k, *v;

  __device__ TileCursor(const KvSegment& segment, int kv_head, int head_dim, int first, int limit)
      : dim(head_dim), end(min(segment.position + segment.rows, limit)) {
    const int skip = max(first - segment.position, 0) / kKeys * kKeys;
    const int64_t elements = (int64_t{kv_head} * segment.stride_rows + skip) * dim;
    position = segment.position + skip;
    k = static_cast<const T*>(segment.k) + elements;
    v = static_cast<const T*>(segment.v) + elements;
  }
  __device__ bool done() const { return position >= end; }
  __device__ void advance() {
    position += kKeys;
    k += kKeys * dim;
    v += kKeys * dim;
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
