// Selected blocks of every layer for partial steps, and the summaries from which they are selected (SpecPV section 3.2;
// docs/design.md, section 8); cache/partial.h defines their contents. They are copies of committed rows of the full KV
// cache, so attention reads exact values; only rows computed from a partial KV are inexact.
//
// Owns its memory. Thread: one at a time; all work is enqueued on the stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/partial.h"
#include "kernels/blocks/op.h"
#include "offload/device/device.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/kv/partial_rows.h"

namespace headrace {

struct PartialOptions {
  PartialShape shape{};
  BlockScore score = BlockScore::kQuest;
  BlockReduce reduce = BlockReduce::kMean;
  BlockQueries queries = BlockQueries::kRecent;
};

class PartialKv : public PartialRows {
 public:
  // `late`: as MemoryPlan::late_partial.
  PartialKv(Device& device, const RowShape& rows, const PartialOptions& options, int64_t context_rows,
            bool late = false);
  // Device memory in addition to the plan's partial_bytes and index_bytes.
  static uint64_t work_bytes(const RowShape& rows, const PartialShape& shape, int64_t context_rows);
  static uint64_t pinned_bytes(const RowShape& rows);

  // Selects the layer's blocks if there are enough rows, and gathers them unless they come late.
  void fill_layer(int64_t layer, int64_t rows, std::span<const KvSegment> segments, const ScoringQueries& queries,
                  Stream& stream) override;
  void allocate_late() override { allocate_blocks(); }
  void fill_late(int64_t layer, std::span<const KvSegment> segments, Stream& stream) override;
  void finish_prefill(const KvCache& cache, Stream& stream) override;

  bool selects() const override { return true; }
  void choose(int64_t layer, int64_t committed, int64_t pending, const ScoringQueries& queries,
              Stream& stream) override;
  // Low-bit rows become exact ones.
  void gather(int64_t layer, std::span<const KvSegment> segments, Stream& stream) override;
  void before_commit(const KvCache& cache, bool refresh, Stream& stream) override;
  void after_commit(const KvCache& cache, bool refresh, Stream& stream) override;

  // The last commit was by a refresh, or by prefill if its queries may select.
  bool initialised() const override { return initialised_; }
  DType k_type() const override { return rows_.k_type; }
  DType v_type() const override { return rows_.v_type; }
  std::span<const KvSegment> segments(int64_t layer, int64_t /*deepest*/) const override {
    return views_[static_cast<size_t>(layer)];
  }
  int64_t slot_shift() const override { return options_.shape.window_row() - origin_; }
  // With a window that is shorter than the tail, a query's tail may begin before it: all blocks are in its prefix
  // still.
  int64_t least_slot() const override { return options_.shape.window_row() + kTailWindow; }
  const int32_t* tail_first() const override { return options_.shape.window < kTailWindow ? work_.origin : nullptr; }

 private:
  std::byte* k_of(int64_t layer) const;
  std::byte* v_of(int64_t layer) const;
  std::byte* summaries(int64_t layer) const;
  int32_t* chosen(int64_t layer) const;
  void summarise(int64_t layer, std::span<const KvSegment> segments, Stream& stream);
  void begin_window(const KvCache& cache, Stream& stream);
  void copy_window(const KvCache& cache, int64_t first, int64_t end, Stream& stream);
  void gather(int64_t layer, const RowShape& from, std::span<const KvSegment> segments, Stream& stream);
  void gather_into(int64_t layer, int64_t first_row, GatherBlocksParams params, Stream& stream);
  void allocate_blocks();
  void make_views();

  struct Work {
    float *scores, *workspace;
    int32_t *chosen, *sinks;  // [layers, kv_heads, blocks], [kv_heads, kSinkRows / kBlockRows]
    int32_t* origin;          // [1]
  };
  static Work carve(const RowShape& rows, const PartialShape& shape, int64_t context_rows, BumpAllocator& allocator);

  const RowShape stored_, rows_;  // of the cache's segments; of the partial KV, never low-bit
  const PartialOptions options_;
  const int64_t context_rows_, index_blocks_;
  Device& device_;
  DeviceBuffer memory_, index_, work_memory_;
  PinnedBuffer host_sinks_;  // and the origin
  Work work_;
  std::vector<std::vector<KvSegment>> views_;
  bool has_memory_ = false;                          // else index_ has one layer's summaries
  bool initialised_ = false, sinks_filled_ = false;  // the first rows never change
  int64_t origin_ = 0;                               // the position of the window's first row
  int64_t summarised_ = 0;                           // blocks with summaries
};

}  // namespace headrace
