// The rows before the tail that partial steps read instead of the full KV, in device memory: selected blocks
// (runtime/kv/partial_kv.h), a copy of all rows in fewer bits (runtime/kv/row_copy.h), or nothing of their own: those
// of the full KV (runtime/kv/exact_rows.h). docs/design.md, section 8.
//
// Call order: fill_layer() for each layer that prefill has built; if the plan has a late partial KV, allocate_late()
// and fill_late() for all segments of each layer; then finish_prefill(). In a refresh, if selects(): choose() for each
// layer once its queries are known, and gather() for its segments as they are streamed. Around every commit, of a
// refresh or not: before_commit() and after_commit(). Thread: one at a time; all work is enqueued on the stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cache/partial.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {

// Queries of one layer that score its blocks.
struct ScoringQueries {
  const void* q;  // [count, heads, head_dim], rotated, rows `stride` elements apart
  DType type;
  int64_t count, heads, stride;
};

class PartialRows {
 public:
  virtual ~PartialRows() = default;

  // ---- from the full KV ----
  // A layer of `rows` exact rows in segments, as prefill built it. `queries`: none unless selects().
  virtual void fill_layer(int64_t layer, int64_t rows, std::span<const KvSegment> segments,
                          const ScoringQueries& queries, Stream& stream) = 0;
  // Where MemoryPlan::late_partial says that its memory is allocated here. REQUIRES: prefill has freed its memory, and
  // the stream is idle.
  virtual void allocate_late() {}
  // Segments of the cache, on the device.
  virtual void fill_late(int64_t /*layer*/, std::span<const KvSegment> /*segments*/, Stream& /*stream*/) {}
  // Called once all layers are in the cache, and here.
  virtual void finish_prefill(const KvCache& cache, Stream& stream) = 0;

  // ---- a refresh ----
  virtual bool selects() const { return false; }
  // Selects among the blocks before the window of `committed` rows and `pending` ones.
  virtual void choose(int64_t /*layer*/, int64_t /*committed*/, int64_t /*pending*/, const ScoringQueries& /*queries*/,
                      Stream& /*stream*/) {}
  // Copies the selected blocks that are in these segments of the cache.
  virtual void gather(int64_t /*layer*/, std::span<const KvSegment> /*segments*/, Stream& /*stream*/) {}

  // Called before the pass's rows are appended after the cache's `committed` rows…
  virtual void before_commit(const KvCache& /*cache*/, bool /*refresh*/, Stream& /*stream*/) {}
  // …and after they are.
  virtual void after_commit(const KvCache& cache, bool refresh, Stream& stream) = 0;

  // ---- a partial step ----
  virtual bool initialised() const = 0;  // the next step may be partial
  virtual DType k_type() const = 0;      // of the segments
  virtual DType v_type() const = 0;
  // The runs of rows before the tail of queries at positions up to `deepest`. Their positions, and the queries', are
  // slots: a query at position t sees rows below tail_begin(slot_of(t)). Steps with as many runs read the same ones.
  virtual std::span<const KvSegment> segments(int64_t layer, int64_t deepest) const = 0;
  int64_t slot_of(int64_t position) const { return std::max(position + slot_shift(), least_slot()); }
  virtual int64_t slot_shift() const { return 0; }
  virtual int64_t least_slot() const { return 0; }
  // In device memory: the first position that queries see in their tail (TailAttentionParams::first); null: all.
  virtual const int32_t* tail_first() const { return nullptr; }

  // Partial steps read the full KV itself, all of which is on the device (runtime/kv/exact_rows.h): no segments().
  virtual bool exact() const { return false; }
  // The cache's segments in a copy of all rows, whole; none if it is no copy.
  virtual std::span<const KvSegment> copy(int64_t /*layer*/) const { return {}; }
};

}  // namespace headrace
