#include "runtime/session/session.h"

#include <algorithm>
#include <utility>

#include "runtime/kv/partial_kv.h"
#include "runtime/kv/row_copy.h"
#include "runtime/session/prefill.h"

namespace headrace {
namespace {

std::unique_ptr<PartialRows> make_partial_rows(const SessionLayout& layout, bool late) {
  const PartialOptions& partial = layout.options().partial;
  const int64_t context = layout.options().context_tokens;
  if (partial.shape.copy) return std::make_unique<RowCopy>(layout.device(), layout.shape(), partial.shape, context);
  return std::make_unique<PartialKv>(layout.device(), layout.shape(), partial, context, late);
}

// Fills a late partial KV in one pass over the full KV, whose rows are read on the device or as they arrive.
void fill_late(const PassKv& kv, Stream& compute) {
  kv.partial->allocate_late();
  if (kv.streamer != nullptr) kv.streamer->begin_step(kv.cache.sealed_segments());
  const int64_t sealed = kv.cache.sealed_segments(), open = kv.cache.rows() - segment_range(sealed).begin;
  std::vector<KvSegment> segments;
  for (int64_t layer = 0; layer < kv.cache.shape().layers; ++layer) {
    segments.clear();
    const int64_t resident = std::min(sealed, kv.cache.resident_segments(layer));
    for (int64_t i = 0; i < resident; ++i) segments.push_back(kv.cache.resident_segment(layer, i));
    if (open > 0) {
      segments.push_back(kv.cache.active_segment(layer));
      segments.back().rows = static_cast<int32_t>(open);
    }
    kv.partial->fill_late(layer, segments, compute);
    if (kv.streamer == nullptr || layer >= kv.cache.host_layers()) continue;
    for (const Chunk& chunk : kv.streamer->schedule().chunks) {
      kv.streamer->next({}, compute);
      segments.clear();
      for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) segments.push_back(kv.streamer->segment(i));
      kv.partial->fill_late(layer, segments, compute);
      kv.streamer->done(compute);
    }
  }
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

Session::~Session() {  // nothing may use the memory when it is freed
  if (plan_.layout.options().prefix != nullptr) plan_.layout.options().prefix->abandon();
  drain(plan_.layout.compute());
}

Session::Session(SessionPlan plan, std::unique_ptr<KvCache> cache, std::unique_ptr<StateSnapshots> snapshots)
    : plan_(std::move(plan)),
      follows_(cache != nullptr),
      spill_before_(spilled(cache.get())),
      cache_(std::move(cache)),
      snapshots_(std::move(snapshots)) {}

std::unique_ptr<KvCache> Session::take_cache() {
  drain(plan_.layout.compute());
  pass_.reset();
  streamer_.reset();
  return std::move(cache_);
}

std::unique_ptr<KvBacking> Session::make_backing() const {
  const SessionLayout& layout = plan_.layout;
  const SessionOptions& options = layout.options();
  return std::make_unique<KvBacking>(
      layout.device(), layout.shape(), plan_.memory,
      KvBackingOptions{.spill = options.spill, .host_piece_bytes = options.host_piece_bytes});
}

void Session::begin_host_memory(uint64_t beside_bytes) {
  const uint64_t free = plan_.layout.device().host_mem().free_bytes();
  if (backing_ || cache_ || free < beside_bytes || free - beside_bytes < KvBacking::pinned_bytes(plan_.memory)) return;
  backing_ = make_backing();
}

void Session::allocate() {
  const SessionLayout& layout = plan_.layout;
  const SessionOptions& options = layout.options();
  if (!cache_ && !backing_) backing_ = make_backing();
  buffers_ = std::make_unique<SessionBuffers>(plan_);
  if (!cache_) {
    cache_ = std::make_unique<KvCache>(layout.device(), layout.shape(), plan_.memory, layout.pass_rows(),
                                       std::move(backing_));
  }
  const RecurrentShape recurrent = layout.recurrent_shape();
  if (recurrent.layers > 0) recurrent_ = std::make_unique<RecurrentState>(layout.device(), recurrent);
  if (layout.keeps_states() && !snapshots_) snapshots_ = std::make_unique<StateSnapshots>(layout.device(), recurrent);
  if (layout.partial_on()) {
    partial_ = make_partial_rows(layout, plan_.memory.late_partial);
  }
  if (options.draft != nullptr) {
    options.draft->allocate(layout.compute());
    options.draft->attach(*cache_);
  }
}

std::optional<int32_t> Session::prefill(std::span<const int32_t> ids, Progress* progress,
                                        const std::atomic<bool>* interrupt) {
  const SessionLayout& layout = plan_.layout;
  CHECK(static_cast<int64_t>(ids.size()) == layout.options().prompt_tokens && !pass_);
  CHECK(rows() >= layout.options().kept_rows, "kept_rows=", layout.options().kept_rows);
  allocate();
  const Watcher watcher{.progress = progress, .interrupt = interrupt};
  PassKv kv{.cache = *cache_, .partial = partial_.get(), .recurrent = recurrent_.get(), .snapshots = snapshots_.get()};
  if (!Prefill(plan_, *buffers_, kv, watcher).run(ids)) return std::nullopt;
  buffers_->allocate_passes();
  if (recurrent_) recurrent_->allocate_passes();
  if (plan_.memory.ring_slots > 0) {
    streamer_ = std::make_unique<KvStreamer>(layout.device(), cache_->backing(), plan_.memory.ring_slots,
                                             plan_.memory.ring_slot_bytes);
  }
  kv.streamer = streamer_.get();
  if (plan_.memory.late_partial) fill_late(kv, layout.compute());
  if (partial_) partial_->finish_prefill(*cache_, layout.compute());
  pass_ = std::make_unique<TargetPass>(plan_, *buffers_, kv);
  return pass_->sample_prompt();
}

SessionStats Session::stats() const {
  SessionStats stats;
  if (cache_ && !follows_) {
    const BackgroundPinnedBuffer& host = cache_->backing().host_memory();
    stats.host_memory_ms = host.ms();
    stats.host_wait_ms = host.waited_ms();
    if (const RowRemainders* const remainders = cache_->backing().remainders()) {
      stats.host_memory_ms = std::max(stats.host_memory_ms, remainders->host_memory().ms());  // pinned in parallel
      stats.host_wait_ms += remainders->host_memory().waited_ms();
    }
  }
  if (disk() != nullptr) stats.spill = since(spill_before_, disk()->stats());
  if (pass_) {
    stats.replayed_steps = pass_->replayed_steps();
    stats.steps_on_device = pass_->steps_on_device();
    stats.commits_on_device = pass_->commits_on_device();
  }
  return stats;
}

}  // namespace headrace
