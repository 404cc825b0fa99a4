#include "runtime/session/sequence.h"

#include <algorithm>
#include <utility>

#include "runtime/kv/exact_rows.h"
#include "runtime/kv/partial_kv.h"
#include "runtime/kv/row_copy.h"

namespace headrace {
namespace {

std::unique_ptr<PartialRows> make_partial_rows(const SessionLayout& layout, const KvCache& cache, bool late) {
  const PartialOptions& partial = layout.options().partial;
  if (partial.shape.exact) return std::make_unique<ExactRows>(cache);
  const int64_t context = layout.options().context_tokens;
  if (partial.shape.copy) {
    return std::make_unique<RowCopy>(layout.device(), layout.shape(), partial.shape, context, late);
  }
  return std::make_unique<PartialKv>(layout.device(), layout.shape(), partial, context, late);
}

// The statistics of a spilled file since `before`.
SpillStats since(const SpillStats& before, SpillStats now) {
  now.written_bytes -= before.written_bytes;
  now.read_bytes -= before.read_bytes;
  now.checksum_ms -= before.checksum_ms;
  now.verify_wait_ms -= before.verify_wait_ms;
  now.read_busy_ms -= before.read_busy_ms;
  return now;
}

SpillStats spilled(KvCache* cache) {
  SpillFile* const disk = cache != nullptr ? cache->backing().disk() : nullptr;
  return disk != nullptr ? disk->stats() : SpillStats();
}

}  // namespace

Sequence::Sequence(const SessionPlan& plan, KeptState kept)
    : plan_(plan),
      follows_(kept.cache != nullptr),
      spill_before_(spilled(kept.cache.get())),
      cache_(std::move(kept.cache)),
      snapshots_(std::move(kept.snapshots)) {}

std::unique_ptr<KvBacking> Sequence::make_backing() const {
  const SessionLayout& layout = plan_.layout;
  const SessionOptions& options = layout.options();
  return std::make_unique<KvBacking>(
      layout.device(), layout.shape(), plan_.memory,
      KvBackingOptions{.spill = options.spill, .host_piece_bytes = options.host_piece_bytes});
}

void Sequence::begin_host_memory(uint64_t beside_bytes) {
  const uint64_t free = plan_.layout.device().host_mem().free_bytes();
  if (backing_ || cache_ || free < beside_bytes || free - beside_bytes < KvBacking::pinned_bytes(plan_.memory)) return;
  backing_ = make_backing();
}

void Sequence::allocate() {
  const SessionLayout& layout = plan_.layout;
  if (!cache_) {
    if (!backing_) backing_ = make_backing();
    cache_ = std::make_unique<KvCache>(layout.device(), layout.shape(), plan_.memory, layout.pass_rows(),
                                       std::move(backing_));
  }
  CHECK(rows() >= layout.options().kept_rows, "kept_rows=", layout.options().kept_rows);
  if (layout.groups().window_layers() > 0) {
    windows_ = std::make_unique<WindowRows>(layout.device(), layout.window_shape(), layout.pass_rows());
  }
  const RecurrentShape recurrent = layout.recurrent_shape();
  if (recurrent.layers > 0) recurrent_ = std::make_unique<RecurrentState>(layout.device(), recurrent);
  if (layout.keeps_states() && !snapshots_) {
    snapshots_ = std::make_unique<StateSnapshots>(layout.device(), layout.snapshot_shape());
  }
  if (layout.partial_on()) partial_ = make_partial_rows(layout, *cache_, plan_.memory.late_partial);
  if (draft() != nullptr) {
    draft()->allocate(layout.compute());
    draft()->attach(*cache_);
  }
}

KvRows Sequence::pass_destination(const StatePlace& layer, const int32_t* first) const {
  const bool window = layer.group == StateGroup::kWindow;
  return (window ? windows_->recent() : cache_->recent()).pass_destination(layer.place, first);
}

SequenceStats Sequence::stats() const {
  SequenceStats stats;
  if (!cache_) return stats;
  KvBacking& backing = cache_->backing();
  if (!follows_) {
    stats.host_memory_ms = backing.host_memory().ms();
    stats.host_wait_ms = backing.host_memory().waited_ms();
    if (const RowRemainders* const remainders = backing.remainders()) {
      stats.host_memory_ms = std::max(stats.host_memory_ms, remainders->host_memory().ms());  // pinned in parallel
      stats.host_wait_ms += remainders->host_memory().waited_ms();
    }
  }
  if (backing.disk() != nullptr) stats.spill = since(spill_before_, backing.disk()->stats());
  return stats;
}

}  // namespace headrace
