// The K and V of the layer that prefill builds (docs/design.md, section 7): where they are built and attention reads
// them, how rows come back in place of being computed, and how the finished layer reaches its tiers. Layers one after
// another, in order, each by its place in its group (runtime/model/state_groups.h), in one buffer; the next layer's
// rows wait until the last one's copies have run. Where later layers read the rows of the last one of a group, windows
// have a buffer of their own, so that both stay. Owns the buffers. Thread: the executor's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "runtime/kv/made_keys.h"
#include "runtime/session/layout.h"
#include "runtime/session/sequence.h"

namespace headrace {

class LayerRows {
 public:
  // Both must outlive this. Allocates device memory as it is planned.
  LayerRows(const SessionLayout& layout, Sequence& sequence);

  // Writes layout.segment_tables() tables to `host` and enqueues their copy to `device`, whose size they have.
  void fill_tables(KvSegment* host, KvSegment* device);
  int64_t segment_count() const { return count_; }
  // The segments of a layer in these tables, with the rows that the prompt fills.
  const KvSegment* segments(const StatePlace& layer) const { return device_ + table(layer) * count_; }
  std::span<const KvSegment> host_segments(const StatePlace& layer) const;

  // The rows before the first that is computed, from a saved prefix or the run before; of a window, those that it still
  // has, from the snapshot at that position. False: the prefix is damaged.
  bool restore(const StatePlace& layer);
  // After restore(), with the layer's weights: the K of these rows, where V alone was saved and kept.
  void make_keys(const StatePlace& layer, const KeyMaker& maker);
  // Before the first rows of a layer are built: waits until the buffer is free, unless they are built where they stay.
  void wait_for_buffer(const StatePlace& layer);
  // K and V of rows [first, first + pass.rows), which may span several segments, from pass.work.qkv. Of a window also
  // the copies to the snapshots that are wanted behind these rows.
  void build(const Pass& pass, const LayerWeights& weights, const StatePlace& layer, int64_t first);
  // The layer is complete: enqueues the copies to its tiers and to a saved prefix; of a window, to the ring.
  void store(const StatePlace& layer);

 private:
  static bool is_window(const StatePlace& layer) { return layer.group == StateGroup::kWindow; }
  const RowShape& stored_shape(const StatePlace& layer) const;
  KvSegment exact_segment(const StatePlace& layer, int64_t index) const;
  std::byte* stored_segment(const StatePlace& layer, int64_t index) const;
  uint64_t offset(const StatePlace& layer, const RowShape& shape, int64_t index) const;  // of a segment in a buffer
  void save_windows(const StatePlace& layer, int64_t first, int64_t end);
  int64_t table(const StatePlace& layer) const;
  std::optional<KvSegment> in_place(const StatePlace& layer, int64_t index) const;
  std::byte* keys(const StatePlace& layer) const;  // of the segments in the buffer, where they have V alone; else null
  KvSegment filled(KvSegment segment) const;       // with the rows that the prompt fills
  std::byte* exact_data(const StatePlace& layer) const {
    return windows_ && is_window(layer) ? windows_.data() : buffer_.data();
  }
  // As they are stored.
  std::byte* stored_data(const StatePlace& layer) const { return quantised_ ? quantised_.data() : exact_data(layer); }
  void dequantise_saved(const StatePlace& layer);
  void restore_rows_of_window(const StatePlace& layer);
  void store_window(const StatePlace& layer);

  const SessionLayout& layout_;
  const SessionOptions& options_;
  Sequence& sequence_;
  KvCache& cache_;
  Stream& compute_;
  const int64_t count_;      // segments of the prompt
  const int64_t ring_rows_;  // in which layers with a window are built: the last rows (cache/window.h)
  const KvCache::BuiltRows built_;
  DeviceBuffer buffer_, windows_;  // segments of exact rows; those of windows, if they have a buffer of their own
  DeviceBuffer quantised_;         // the same rows in the cache's types if one is low-bit, of either
  std::span<const KvSegment> host_;
  const KvSegment* device_ = nullptr;
  std::shared_ptr<Event> left_;  // the buffer is free
};

}  // namespace headrace
