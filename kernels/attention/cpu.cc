#include <algorithm>
#include <bit>

#include "kernels/attention/bodies.h"
#include "kernels/attention/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

constexpr int64_t kMaxHeads = 64;  // per block; larger groups of query heads are split

// How the rows of q are split into blocks. This does not affect a row's bits, only how often K and V are read.
struct Cut {
  int64_t group, heads_per_block, head_blocks;  // query heads of a KV head, and how they are split
  int64_t queries_per_block;                    // a power of two

  Cut(const AttentionShape& shape, int64_t most_queries)
      : group(shape.heads / shape.kv_heads),
        heads_per_block(std::min(group, kMaxHeads)),
        head_blocks(ceil_div(group, heads_per_block)),
        queries_per_block(static_cast<int64_t>(std::bit_floor(
            static_cast<uint64_t>(std::min(most_queries, attention_rows(shape.head_dim) / heads_per_block))))) {}

  // Sets the heads of the block; `index` counts KV heads x blocks of heads.
  AttentionBlock heads(int64_t index) const {
    const int64_t kv_head = index / head_blocks, first = index % head_blocks * heads_per_block;
    return {0, 0, kv_head, kv_head * group + first, std::min(heads_per_block, group - first)};
  }
};

}  // namespace

void prefill_attention(const PrefillAttentionParams& params, ThreadPool& pool) {
  const AttentionShape& shape = params.shape;
  const AttentionKernels& kernels = HEADRACE_PICK_ISA(attention_kernels);
  const Cut cut(shape, kAttentionMaxRows);
  // Blocks of queries begin at absolute multiples of their size, so that the diagonal cuts few tiles.
  const int64_t size = cut.queries_per_block, end = params.first_position + shape.queries;
  const int64_t first_block = params.first_position / size, blocks = ceil_div(end, size) - first_block;
  const int64_t heads = shape.kv_heads * cut.head_blocks;
  pool.parallel_for(blocks * heads, [&](int64_t index, int) {
    AttentionBlock block = cut.heads(index % heads);
    const int64_t place = first_block + blocks - 1 - index / heads;  // the longest first
    const int64_t begin = std::max(place * size, params.first_position);
    block.first_query = begin - params.first_position;
    block.queries = std::min((place + 1) * size, end) - begin;
    kernels.prefill(params, block);
  });
}

void prefix_attention(const PrefixAttentionParams& params, ThreadPool& pool) {
  const AttentionShape& shape = params.shape;
  const AttentionKernels& kernels = HEADRACE_PICK_ISA(attention_kernels);
  const Cut cut(shape, kAttentionMaxRows);
  const int64_t blocks = ceil_div(shape.queries, cut.queries_per_block), heads = shape.kv_heads * cut.head_blocks;
  pool.parallel_for(params.segment_count * heads * blocks, [&](int64_t index, int) {
    AttentionBlock block = cut.heads(index / blocks % heads);
    block.first_query = index % blocks * cut.queries_per_block;
    block.queries = std::min(cut.queries_per_block, shape.queries - block.first_query);
    kernels.prefix(params, index / (blocks * heads), block);
  });
  pool.parallel_for(shape.queries, [&](int64_t query, int) { kernels.fold_prefix(params, query); });
}

void tail_attention(const TailAttentionParams& params, ThreadPool& pool) {
  const AttentionShape& shape = params.shape;
  const AttentionKernels& kernels = HEADRACE_PICK_ISA(attention_kernels);
  const Cut cut(shape, 1);
  const int64_t heads = shape.kv_heads * cut.head_blocks;
  pool.parallel_for(shape.queries * heads, [&](int64_t index, int) {
    AttentionBlock block = cut.heads(index % heads);
    block.first_query = index / heads;
    block.queries = 1;
    kernels.tail(params, block);
  });
}

}  // namespace headrace::kernels::cpu
