// A copy of all rows before the tail in fewer bits, from which partial steps read (docs/design.md, section 8). Its
// segments are those of the full KV, with the true positions.
// Owns its memory. Thread: one at a time; all work is enqueued on the stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/device/device.h"
#include "runtime/kv/partial_rows.h"

namespace headrace {

class RowCopy : public PartialRows {
 public:
  // `rows`: of the full KV. `shape` has the type of the copy. `late`: as MemoryPlan::late_partial.
  RowCopy(Device& device, const RowShape& rows, const PartialShape& shape, int64_t context_rows, bool late);
  // Memory in addition to the plan's partial_bytes: of the device, and pinned.
  static uint64_t work_bytes(const RowShape& rows, int64_t context_rows);
  static uint64_t pinned_bytes(const RowShape& rows, int64_t context_rows) { return work_bytes(rows, context_rows); }

  void fill_layer(int64_t layer, int64_t rows, std::span<const KvSegment> segments, const ScoringQueries& queries,
                  Stream& stream) override;
  void allocate_late() override;
  void fill_late(int64_t layer, std::span<const KvSegment> segments, Stream& stream) override;
  void finish_prefill(const KvCache& cache, Stream& stream) override;
  // Adds the committed rows, from the tail's ring.
  void after_commit(const KvCache& cache, bool refresh, Stream& stream) override;

  bool initialised() const override { return initialised_; }
  DType k_type() const override { return copy_.k_type; }
  DType v_type() const override { return copy_.v_type; }
  std::span<const KvSegment> segments(int64_t layer, int64_t deepest) const override;
  std::span<const KvSegment> copy(int64_t layer) const override { return views_[static_cast<size_t>(layer)]; }

 private:
  KvSegment view(int64_t layer, int64_t index) const;
  void fill(int64_t layer, std::span<const KvSegment> segments, Stream& stream);

  const RowShape exact_, copy_;  // as prefill and the ring hold rows, and as they are here
  const int64_t segments_, least_context_;
  Device& device_;
  const uint64_t bytes_;
  DeviceBuffer memory_, pointers_;  // pointers_: [segments, 2, layers], to K and V of a segment
  PinnedBuffer host_pointers_;
  std::vector<std::vector<KvSegment>> views_;   // [layers][segments]; no segments before memory_ is allocated
  bool pointed_ = false, initialised_ = false;  // pointed_: pointers_ are there
};

}  // namespace headrace
