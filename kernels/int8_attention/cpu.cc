#include <algorithm>
#include <bit>

#include "kernels/int8_attention/bodies.h"
#include "kernels/int8_attention/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void int8_centre(const Int8CentreParams& params, ThreadPool& pool) {
  const Int8AttentionKernels& kernels = HEADRACE_PICK_ISA(int8_attention_kernels);
  pool.parallel_for(params.kv_heads, [&](int64_t head, int) { kernels.centre(params, head); });
}

void int8_kv(const Int8KvParams& params, ThreadPool& pool) {
  const Int8AttentionKernels& kernels = HEADRACE_PICK_ISA(int8_attention_kernels);
  const int64_t tiles = (params.end - params.first) / kPrefixTile;
  pool.parallel_for(tiles * params.kv_heads, [&](int64_t index, int) {
    kernels.kv(params, params.first + index / params.kv_heads * kPrefixTile, index % params.kv_heads);
  });
}

void int8_attention(const Int8AttentionParams& params, ThreadPool& pool) {
  const AttentionShape& shape = params.shape;
  const Int8AttentionKernels& kernels = HEADRACE_PICK_ISA(int8_attention_kernels);
  // Blocks of queries do not reach over the end of a tile. How heads are cut decides no bit.
  const int64_t group = shape.heads / shape.kv_heads, most_heads = std::min<int64_t>(group, 64);
  const int64_t head_blocks = ceil_div(group, most_heads), blocks_of_heads = shape.kv_heads * head_blocks;
  const int64_t size = static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::min<int64_t>(kPrefixTile, kAttentionMaxRows / most_heads))));
  const int64_t end = params.first_position + shape.queries;
  const int64_t first_block = params.first_position / size, blocks = ceil_div(end, size) - first_block;
  pool.parallel_for(blocks * blocks_of_heads, [&](int64_t index, int) {
    const int64_t heads = index % blocks_of_heads, kv_head = heads / head_blocks;
    const int64_t first = heads % head_blocks * most_heads;
    const int64_t place = first_block + blocks - 1 - index / blocks_of_heads;  // the longest first
    const int64_t begin = std::max(place * size, params.first_position);
    kernels.attention(params, {.first_query = begin - params.first_position,
                               .queries = std::min((place + 1) * size, end) - begin,
                               .kv_head = kv_head,
                               .first_head = kv_head * group + first,
                               .heads = std::min(most_heads, group - first)});
  });
}

}  // namespace headrace::kernels::cpu
