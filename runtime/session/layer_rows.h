// The K and V of the layer that prefill builds (docs/design.md, section 7): where they are built and attention reads
// them, how rows come back in place of being computed, and how the finished layer reaches its tiers. Layers one after
// another, in order, each by its place among the layers with rows (runtime/model/state_groups.h), in one buffer; the
// next layer's rows wait until the last one's copies have run. Owns the buffers. Thread: the executor's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/kv/kv_cache.h"
#include "runtime/kv/partial_rows.h"
#include "runtime/session/layout.h"

namespace headrace {

class LayerRows {
 public:
  // `partial`: null if the run has none. All references must outlive this. Allocates device memory as it is planned.
  LayerRows(const SessionLayout& layout, KvCache& cache, PartialRows* partial);

  // Writes layout.segment_tables() tables to `host` and enqueues their copy to `device`, whose size they have.
  void fill_tables(KvSegment* host, KvSegment* device);
  int64_t segment_count() const { return count_; }
  // The segments of a layer in these tables, with the rows that the prompt fills.
  const KvSegment* segments(int64_t layer) const { return device_ + first_segment(layer); }
  std::span<const KvSegment> host_segments(int64_t layer) const;

  // The rows before the first that is computed, from a saved prefix or the run before. False: the prefix is damaged.
  bool restore(int64_t layer);
  // Before the first rows of a layer are built: waits until the buffer is free, unless they are built where they stay.
  void wait_for_buffer(int64_t layer);
  // K and V of rows [first, first + pass.rows), which may span several segments, from pass.work.qkv.
  void build(const Pass& pass, const LayerWeights& weights, int64_t layer, int64_t first);
  // The layer is complete: enqueues the copies to its tiers and to a saved prefix.
  void store(int64_t layer);

 private:
  std::byte* exact_segment(int64_t layer, int64_t index) const;
  std::byte* stored_segment(int64_t index) const;
  int64_t first_segment(int64_t layer) const { return layout_.segment_tables() > 1 ? layer * count_ : 0; }
  // Segment `index` at `data`, with the rows that the prompt fills.
  KvSegment filled(const RowShape& shape, const std::byte* data, int64_t index) const;
  void dequantise_saved();

  const SessionLayout& layout_;
  const SessionOptions& options_;
  KvCache& cache_;
  PartialRows* const partial_;
  Stream& compute_;
  const RowShape exact_;  // of the rows that are computed
  const int64_t count_;   // segments of the prompt
  const KvCache::BuiltRows built_;
  DeviceBuffer buffer_, quantised_;  // segments of exact rows; the same rows in the cache's types if one is low-bit
  std::byte* stored_ = nullptr;      // the rows as they are stored: quantised_, or else buffer_
  std::span<const KvSegment> host_;
  const KvSegment* device_ = nullptr;
  std::shared_ptr<Event> left_;  // the buffer is free
};

}  // namespace headrace
