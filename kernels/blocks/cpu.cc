#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/blocks/bodies.h"
#include "kernels/blocks/cpu_isa.h"
#include "kernels/cpu/for_rows.h"
#include "kernels/rows/cpu_isa.h"
#include "kernels/rows/plane.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

// Calls body(head, begin, end) for runs of [0, count) of every head.
template <typename Body>
void for_runs(ThreadPool& pool, int64_t heads, int64_t count, int64_t longest, const Body& body) {
  const int64_t runs = ceil_div(count, longest);
  pool.parallel_for(heads * runs, [&](int64_t index, int) {
    const int64_t begin = index % runs * longest;
    body(index / runs, begin, std::min(begin + longest, count));
  });
}

// Larger for a better block: a higher score, then a lower number. 0 and -0 are equal scores.
uint64_t order_of(float score, int64_t block) {
  if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (UINT32_MAX - static_cast<uint32_t>(block));
}

void gather_block(const PlaneRow& from, DType stored, int64_t head_dim, void* out, DType type) {
  if (low_bit(stored)) {
    HEADRACE_PICK_ISA(row_kernels).dequantise({out, from.values, from.parameters, type, stored, head_dim, kBlockRows});
  } else {
    std::memcpy(out, from.values, kBlockRows * row_value_bytes(type, head_dim));
  }
}

}  // namespace

void summarise_blocks(const SummariseBlocksParams& p, ThreadPool& pool) {
  const BlockKernels& kernels = HEADRACE_PICK_ISA(block_kernels);
  for_runs(pool, p.layers * p.kv_heads, p.count, 64, [&](int64_t head, int64_t begin, int64_t end) {
    const int64_t keys = head / p.kv_heads * p.k_layer_stride + head % p.kv_heads * p.ring_rows * p.head_dim;
    for (int64_t block = p.first_block + begin; block < p.first_block + end; ++block) {
      const void* rows[kBlockRows];
      for (int64_t row = 0; row < kBlockRows; ++row) {
        rows[row] = at(p.k, keys + (block * kBlockRows + row) % p.ring_rows * p.head_dim, p.k_type);
      }
      kernels.summarise(p.k_type, rows, p.head_dim,
                        at(p.summaries, (head * p.blocks + block) * 2 * p.head_dim, p.k_type));
    }
  });
}

void score_blocks(const ScoreBlocksParams& p, ThreadPool& pool) {
  const BlockKernels& kernels = HEADRACE_PICK_ISA(block_kernels);
  if (p.score == BlockScore::kQuest && p.reduce == BlockReduce::kMean) {
    pool.parallel_for(p.kv_heads, [&](int64_t head, int) { kernels.mean_parts(p, head); });
    for_runs(pool, p.kv_heads, p.count, 256, [&](int64_t head, int64_t begin, int64_t end) {
      kernels.score_means(p, {head, begin, end - begin});
    });
  } else {
    for_runs(pool, p.kv_heads, p.count, kBlockRunOfRows, [&](int64_t head, int64_t begin, int64_t end) {
      kernels.score_rows(p, {head, begin, end - begin});
    });
  }
}

void select_blocks(const SelectBlocksParams& p, ThreadPool& pool) {
  pool.parallel_for(p.kv_heads, [&](int64_t head, int) {
    const float* scores = p.scores + head * p.count;
    uint64_t best[kMaxKeptBlocks];  // a heap with the worst at the top
    for (int64_t block = 0; block < p.keep; ++block) best[block] = order_of(scores[block], block);
    std::make_heap(best, best + p.keep, std::greater<>());
    for (int64_t block = p.keep; block < p.count; ++block) {
      const uint64_t order = order_of(scores[block], block);
      if (order < best[0]) continue;
      std::pop_heap(best, best + p.keep, std::greater<>());
      best[p.keep - 1] = order;
      std::push_heap(best, best + p.keep, std::greater<>());
    }
    int32_t* chosen = p.chosen + head * p.keep;
    for (int64_t i = 0; i < p.keep; ++i) {
      chosen[i] = static_cast<int32_t>(p.first_block + (UINT32_MAX - static_cast<uint32_t>(best[i])));
    }
    std::sort(chosen, chosen + p.keep);
  });
}

void gather_blocks(const GatherBlocksParams& p, ThreadPool& pool) {
  for_runs(pool, p.kv_heads, p.keep, 16, [&](int64_t head, int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      const int64_t block = p.chosen[head * p.keep + slot], row = block * kBlockRows;
      CHECK(block >= 0, "block=", block, " head=", head, " slot=", slot);
      for (int64_t i = 0; i < p.segment_count; ++i) {
        const KvSegment& segment = p.segments[i];
        const int64_t first = row - segment.position;
        if (first < 0 || first >= segment.rows) continue;
        CHECK(first + kBlockRows <= segment.rows, "block=", block, " position=", segment.position,
              " rows=", segment.rows);
        const int64_t to = (head * p.out_rows + slot * kBlockRows) * p.head_dim;
        const auto gather = [&](const void* plane, DType stored, void* out, DType type) {
          const PlaneRow from = plane_row(plane, stored, p.kv_heads, segment.stride_rows, p.head_dim, head, first);
          gather_block(from, stored, p.head_dim, at(out, to, type), type);
        };
        gather(segment.k, p.stored_k_type, p.k_out, p.k_type);
        gather(segment.v, p.stored_v_type, p.v_out, p.v_type);
        break;
      }
    }
  });
}

void copy_window(const CopyWindowParams& p, ThreadPool& pool) {
  const int64_t slot = p.first_position % p.ring_rows;
  const int64_t before = std::min(p.count, p.ring_rows - slot);  // rows before the ring's end; the rest wraps
  const auto move = [&](const void* ring, std::byte* out, int64_t layer, int64_t head, DType type) {
    const int64_t from = (layer * p.kv_heads + head) * p.ring_rows, dim = p.head_dim;
    const int64_t to = head * p.out_rows + p.first_position - p.origin;
    const size_t row_bytes = static_cast<size_t>(dim) * dtype_bytes(type);
    std::memcpy(at(out, to * dim, type), at(ring, (from + slot) * dim, type), static_cast<size_t>(before) * row_bytes);
    std::memcpy(at(out, (to + before) * dim, type), at(ring, from * dim, type),
                static_cast<size_t>(p.count - before) * row_bytes);
  };
  pool.parallel_for(p.layers * p.kv_heads, [&](int64_t index, int) {
    const int64_t layer = index / p.kv_heads, head = index % p.kv_heads;
    move(p.ring_k, static_cast<std::byte*>(p.k_out) + static_cast<uint64_t>(layer) * p.k_layer_bytes, layer, head,
         p.k_type);
    move(p.ring_v, static_cast<std::byte*>(p.v_out) + static_cast<uint64_t>(layer) * p.v_layer_bytes, layer, head,
         p.v_type);
  });
}

}  // namespace headrace::kernels::cpu
