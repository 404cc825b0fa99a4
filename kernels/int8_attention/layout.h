// Where int8_kv() keeps a value. A block holds one tile of 64 rows of one KV head; blocks are [tile, kv_head].
//
// CPU: K as [dim / 4][64 rows][4], then the 64 rows' sums (int32) and scales (f32); V as [64 / 4][dim][4], then the
// channels' scales (f32). dim is padded to a multiple of 16 with zeros.
//
// CUDA: K and V as fragments of the tensor cores' m16n8k32 (operand B), 512 bytes each for a warp's 32 lanes with 16
// bytes, then 64 scales of K, each with -kKv8SumsStart times it, and dim scales of V. dim is padded to 64, 128 or 256.
// A fragment of K is 16 rows times 32 elements: lane 4 g + t has rows g and g + 8, of each the elements 4 t to 4 t + 3
// and 16 + 4 t to 16 + 4 t + 3. A fragment of V is 16 channels times 32 rows: the lane has channels g and g + 8, of
// each the rows that the lane's own scores are of, so that packed scores are operand A as they are: for fragments of
// scores j = 0 to 3, rows 8 j + 2 t and 8 j + 2 t + 1. Pure; host and device.
#pragma once

#include <cstdint>

#include "cache/base.h"

#if defined(__CUDACC__)
#define HEADRACE_KV8_BOTH __host__ __device__
#else  // also for sources of an instruction set, which may not share a function with others (kernels/cpu/isa.h)
#define HEADRACE_KV8_BOTH [[gnu::always_inline]]
#endif

namespace headrace::kernels {

constexpr int64_t kKv8Tile = 64;  // kPrefixTile

HEADRACE_KV8_BOTH constexpr int64_t kv8_dim(int64_t head_dim, int64_t multiple) {
  return (head_dim + multiple - 1) / multiple * multiple;
}

namespace cpu {
constexpr int64_t kKv8Multiple = 16;
// Offsets in a block, for a padded dim.
HEADRACE_KV8_BOTH constexpr int64_t kv8_sums(int64_t dim) { return kKv8Tile * dim; }
HEADRACE_KV8_BOTH constexpr int64_t kv8_k_scales(int64_t dim) { return kv8_sums(dim) + kKv8Tile * 4; }
HEADRACE_KV8_BOTH constexpr int64_t kv8_v(int64_t dim) { return kv8_k_scales(dim) + kKv8Tile * 4; }
HEADRACE_KV8_BOTH constexpr int64_t kv8_v_scales(int64_t dim) { return kv8_v(dim) + kKv8Tile * dim; }
HEADRACE_KV8_BOTH constexpr int64_t kv8_block_bytes(int64_t dim) { return kv8_v_scales(dim) + dim * 4; }
}  // namespace cpu

namespace cuda {
// Sums of products begin here, so that an int32 sum below 2^22 is a float without a conversion. Times a scale of K,
// whose last two bits are zero, it is exact.
constexpr float kKv8SumsStart = 12582912.0f;  // 1.5 * 2^23
// The head sizes that kernels are compiled for.
HEADRACE_KV8_BOTH constexpr int64_t kv8_instance(int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}
HEADRACE_KV8_BOTH constexpr int64_t kv8_v(int64_t dim) { return kKv8Tile * dim; }
HEADRACE_KV8_BOTH constexpr int64_t kv8_k_scales(int64_t dim) { return 2 * kKv8Tile * dim; }
HEADRACE_KV8_BOTH constexpr int64_t kv8_v_scales(int64_t dim) { return kv8_k_scales(dim) + kKv8Tile * 8; }
HEADRACE_KV8_BOTH constexpr int64_t kv8_block_bytes(int64_t dim) { return kv8_v_scales(dim) + dim * 4; }

// The workspace of a call, for `rows` rows of q (queries times heads): q in 8 bits, [rows, kv8_instance()], with a
// scale and q.c for each row; then the states of the rows' own tiles: o, not normalised, and m (a power of 2) and l.
// Offsets in bytes.
struct Kv8Workspace {
  uint64_t scales, o, ml, bytes;
};
HEADRACE_KV8_BOTH constexpr Kv8Workspace kv8_workspace(int64_t rows, int64_t head_dim) {
  const auto count = static_cast<uint64_t>((rows + 63) / 64 * 64);
  const uint64_t scales = count * static_cast<uint64_t>(kv8_instance(head_dim)), o = scales + count * 8;
  const uint64_t ml = o + count * static_cast<uint64_t>(head_dim) * 4;
  return {scales, o, ml, ml + count * 8};
}
}  // namespace cuda

}  // namespace headrace::kernels
