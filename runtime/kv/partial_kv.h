// The partial KV of every layer, and the block summaries from which its blocks are selected (SpecPV section 3.2;
// docs/design.md, section 8), in device memory; cache/partial.h defines their contents. Its rows are copies of
// committed rows of the full KV cache, so attention reads exact values; only rows computed from a partial KV are
// inexact.
//
// Call order: fill_layer() for each layer that prefill has built, then finish_prefill(). In a refresh: choose() for
// each layer once its queries are known, and gather() for its segments as they are streamed. Around every commit, of a
// refresh or not: before_commit() and after_commit(). Owns its memory. Thread: one at a time; all work is enqueued on
// the stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/partial.h"
#include "kernels/blocks/op.h"
#include "offload/device/device.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {

struct PartialOptions {
  PartialShape shape{};
  BlockScore score = BlockScore::kQuest;
  BlockReduce reduce = BlockReduce::kMean;
};

// Queries of one layer that score its blocks.
struct ScoringQueries {
  const void* q;  // [count, heads, head_dim], rotated, rows `stride` elements apart
  DType type;
  int64_t count, heads, stride;
};

class PartialKv {
 public:
  PartialKv(Device& device, const RowShape& rows, const PartialOptions& options, int64_t context_rows);
  // Device memory in addition to the plan's partial_bytes and index_bytes.
  static uint64_t work_bytes(const RowShape& rows, const PartialShape& shape, int64_t context_rows);
  static uint64_t pinned_bytes(const RowShape& rows);

  // ---- from the full KV ----
  // A layer of `rows` rows in segments, as prefill built it. Fills the layer's partial KV if there are enough rows.
  void fill_layer(int64_t layer, int64_t rows, std::span<const KvSegment> segments, const ScoringQueries& queries,
                  Stream& stream);
  // Called once all layers are in the cache.
  void finish_prefill(const KvCache& cache, Stream& stream);

  // ---- a refresh ----
  // Selects among the blocks before tail_begin(committed).
  void choose(int64_t layer, int64_t committed, const ScoringQueries& queries, Stream& stream);
  // Copies the selected blocks that are in these segments.
  void gather(int64_t layer, std::span<const KvSegment> segments, Stream& stream);

  // Called before the pass's rows are appended after the cache's `committed` rows…
  void before_commit(const KvCache& cache, bool refresh, Stream& stream);
  // …and after they are.
  void after_commit(const KvCache& cache, bool refresh, Stream& stream);

  // ---- a partial step ----
  bool initialised() const { return initialised_; }  // the last commit was by prefill or a refresh
  // The runs of rows before a query's tail. Their positions, and the queries', are slots: a query at position t has
  // slot_of(t), and its tail has as many rows after that slot as after t.
  const std::vector<KvSegment>& segments(int64_t layer) const { return views_[static_cast<size_t>(layer)]; }
  int64_t slot_of(int64_t position) const { return position - origin_ + options_.shape.window_row(); }

 private:
  std::byte* k_of(int64_t layer) const;
  std::byte* v_of(int64_t layer) const;
  void copy_window(const KvCache& cache, int64_t first, int64_t end, Stream& stream);
  void gather_into(int64_t layer, const int32_t* chosen, int64_t keep, int64_t first_row,
                   std::span<const KvSegment> segments, Stream& stream);
  void make_views();

  struct Work {
    float *scores, *workspace;
    int32_t *chosen, *sinks;  // [kv_heads, blocks], [kv_heads, kSinkRows / kBlockRows]
  };
  static Work carve(const RowShape& rows, const PartialShape& shape, int64_t context_rows, BumpAllocator& allocator);

  const RowShape rows_;
  const PartialOptions options_;
  const int64_t index_blocks_;
  DeviceBuffer memory_, index_, work_memory_;
  PinnedBuffer host_sinks_;
  Work work_;
  std::vector<std::vector<KvSegment>> views_;
  bool initialised_ = false, sinks_filled_ = false;  // the first rows never change
  int64_t origin_ = 0;                               // the position of the window's first row
  int64_t summarised_ = 0;                           // blocks with summaries
};

}  // namespace headrace
