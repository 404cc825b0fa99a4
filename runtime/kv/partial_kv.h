// The partial KV of every layer and the summaries that its blocks are chosen by (SpecPV section 3.2; docs/design.md,
// section 8), in device memory; cache/partial.h says what they hold. Rows are copies of committed rows of the full KV
// cache, so that what attention sees of them is exact; only rows that were computed from a partial KV are not.
//
// Way of use: fill_layer() for each layer that prefill has built, then finish_prefill(). Of a refresh: choose() for
// each layer once its queries are known, and gather() for its segments as they pass. Around every commit of rows to the
// cache, a refresh's or not: before_commit() and after_commit(). Owns its memory. Thread: one at a time; all work is
// enqueued on the stream.
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

// The queries of one layer that blocks are scored by.
struct ScoringQueries {
  const void* q;  // [count, heads, head_dim], rotated, rows `stride` elements apart
  DType type;
  int64_t count, heads, stride;
};

class PartialKv {
 public:
  PartialKv(Device& device, const RowShape& rows, const PartialOptions& options, int64_t context_rows);
  // Device memory beside the plan's partial_bytes and index_bytes.
  static uint64_t work_bytes(const RowShape& rows, const PartialShape& shape, int64_t context_rows);
  static uint64_t pinned_bytes(const RowShape& rows);

  // ---- the full KV's rows ----
  // A layer of `rows` rows in segments, as prefill built it. Fills the layer's partial KV if they are enough.
  void fill_layer(int64_t layer, int64_t rows, std::span<const KvSegment> segments, const ScoringQueries& queries,
                  Stream& stream);
  // All layers are in the cache.
  void finish_prefill(const KvCache& cache, Stream& stream);

  // ---- a refresh ----
  // Among the blocks before tail_begin(committed).
  void choose(int64_t layer, int64_t committed, const ScoringQueries& queries, Stream& stream);
  // The chosen blocks that lie in these segments.
  void gather(int64_t layer, std::span<const KvSegment> segments, Stream& stream);

  // The pass's rows are about to be appended to the cache behind its `committed` rows…
  void before_commit(const KvCache& cache, bool refresh, Stream& stream);
  // …and are now there.
  void after_commit(const KvCache& cache, bool refresh, Stream& stream);

  // ---- a partial step ----
  bool initialised() const { return initialised_; }  // since the last commit was prefill's or a refresh's
  // The runs that a query sees before its tail. Their positions, and the queries', are slots: a query at position t
  // stands at slot_of(t), from where on as many rows are its tail as from t.
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
  int64_t summarised_ = 0;                           // blocks that have summaries
};

}  // namespace headrace
