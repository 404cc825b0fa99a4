#include "runtime/kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "runtime/base/unsigned.h"

namespace headrace {

// With the whole capacity, so that a step's calls do not change with every row: no prefix extends beyond the last
// committed row, and unwritten rows are finite.
KvSegment segment_view(const RowShape& shape, const std::byte* data, int64_t index, const std::byte* keys) {
  const SegmentRange range = segment_range(index);
  CHECK(shape.values_alone == (keys != nullptr), "values_alone=", shape.values_alone);
  return {.k = shape.values_alone ? keys : data,
          .v = data + u(range.rows) * shape.k_bytes(),
          .position = static_cast<int32_t>(range.begin),
          .rows = static_cast<int32_t>(range.rows),
          .stride_rows = static_cast<int32_t>(range.rows)};
}

KvCache::KvCache(Device& device, const RowShape& shape, const MemoryPlan& plan, int64_t pass_rows,
                 std::unique_ptr<KvBacking> backing)
    : shape_(shape),
      on_gpu_(device.backend() == Backend::kCuda),
      segments_(plan.segments),
      resident_(plan.resident_segments),
      host_layers_(plan.host_layers),
      active_stride_(plan.active_bytes / u(std::max<int64_t>(1, plan.host_layers))),
      resident_bytes_(plan.resident_bytes),
      active_bytes_(plan.active_bytes),
      open_(u(plan.host_layers), 0),
      recent_(device, shape, pass_rows),
      backing_(std::move(backing)) {
  const auto allocate = [&](uint64_t bytes, const char* what) {
    return bytes > 0 ? device.allocate(bytes, what) : DeviceBuffer();
  };
  resident_memory_ = allocate(plan.resident_bytes + plan.resident_key_bytes, "the resident KV cache");
  active_memory_ = allocate(plan.active_bytes + plan.active_key_bytes, "the KV cache's active segment");
}

KvCache::~KvCache() = default;

// ---- addresses ----

// Fully resident layers come last.
std::byte* KvCache::resident_data(int64_t layer, int64_t index) const {
  const uint64_t before = u(std::min(layer, host_layers_)) * segments_bytes(shape_, 0, resident_) +
                          u(std::max<int64_t>(0, layer - host_layers_)) * segments_bytes(shape_, 0, segments_);
  return resident_memory_.data() + before + segments_bytes(shape_, 0, index);
}

std::byte* KvCache::active_data(int64_t layer) const {
  const int64_t active = sealed_segments();
  if (active < resident_segments(layer)) return resident_data(layer, active);
  return active_memory_.data() + u(std::min(layer, host_layers_)) * active_stride_;
}

std::byte* KvCache::keys_of(std::byte* data) const {
  if (!shape_.values_alone) return nullptr;
  const std::byte* const resident = resident_memory_.data();
  const bool stays = resident != nullptr && data >= resident && data < resident + resident_bytes_;
  return data + (stays ? resident_bytes_ : active_bytes_);
}

KvSegment KvCache::view(std::byte* data, int64_t index) const {
  return segment_view(shape_, data, index, keys_of(data));
}

KvSegment KvCache::resident_segment(int64_t layer, int64_t index) const {
  CHECK(index < resident_segments(layer) && index <= sealed_segments());
  return view(resident_data(layer, index), index);
}

KvSegment KvCache::active_segment(int64_t layer) const { return view(active_data(layer), sealed_segments()); }

// ---- prefill ----

void KvCache::keep(int64_t kept) {
  CHECK(kept <= rows_, "kept=", kept, " of ", rows_);
  backing_->out().synchronize();
  backing_->finish_writes();
  if (RowRemainders* const remainders = backing_->remainders()) remainders->drop_from(segment_of(kept));
  rows_ = kept;
  pending_ = 0;
}

// Non-resident rows of a layer that is not stored yet, without those of the active segment.
std::vector<Chunk> KvCache::kept_chunks(int64_t layer) const {
  const int64_t end = segments_for(rows_);
  return layer < host_layers_ ? backed_chunks(resident_, std::min(end, open_[u(layer)])) : std::vector<Chunk>();
}

std::optional<KvSegment> KvCache::segment_in_place(int64_t layer, int64_t index) const {
  if (shape_.has_low_bit() || index >= resident_segments(layer)) return std::nullopt;
  return view(resident_data(layer, index), index);
}

bool KvCache::stores_on_disk(const BuiltRows& rows) const {
  return backing_->on_disk(std::max(segment_of(rows.kept), resident_), segment_of(rows.end));
}

void KvCache::restore_layer(int64_t layer, const BuiltRows& rows, std::byte* stored, const Event& free,
                            Stream& compute) {
  const int64_t end = segments_for(rows_), resident = resident_segments(layer), stay = std::min(end, resident);
  if (stay == end && segment_in_place(layer, 0)) return;
  compute.wait(free);
  if (stay > 0 && !segment_in_place(layer, 0)) {
    compute.copy(stored, resident_data(layer, 0), segments_bytes(shape_, 0, stay), Link::kWithinDevice,
                 {"kept, layer", layer});
  }
  if (stay == end) return;
  std::vector<Extent> later;  // none if this layer's own rows are written before: that ends the reads
  for (int64_t next = layer + 1; next < host_layers_ && !stores_on_disk(rows); ++next) {
    backing_->add_extents(next, kept_chunks(next), &later);
  }
  backing_->read_back(layer, kept_chunks(layer), stored + segments_bytes(shape_, 0, resident), later, compute);
  if (const int64_t open = open_[u(layer)]; open >= resident && open < end) {
    compute.copy(stored + segments_bytes(shape_, 0, open), active_memory_.data() + u(layer) * active_stride_,
                 segments_bytes(shape_, open, open + 1), Link::kWithinDevice, {"kept, open, layer", layer});
  }
}

void KvCache::store_layer(int64_t layer, const BuiltRows& built_rows, const BuiltLayer& built, Stream& compute,
                          Event& copied) {
  const int64_t rows = built_rows.end, first = segment_of(built_rows.kept);
  CHECK(rows > built_rows.kept && segments_for(rows) <= segments_, "rows=", rows);
  backing_->begin_offload(compute);
  const std::byte* const segments = built.stored;
  Stream& out = backing_->out();
  const int64_t touched = segments_for(rows), active = segment_of(rows);  // active may be one past the last touched
  const int64_t resident = resident_segments(layer), stay = std::min(touched, resident);
  const bool in_place = built_rows.kept > 0 && segment_in_place(layer, 0);
  if (first < stay && !in_place) {
    copy_to_device(resident_data(layer, first), built, {first, stay}, {"resident, layer", layer});
  }
  const std::vector<Chunk> leaving = backed_chunks(std::max(first, resident), active);
  if (layer < host_layers_ && stores_on_disk(built_rows)) backing_->end_read_back(compute);
  const auto chunk_data = [&](const Chunk& chunk) { return segments + segments_bytes(shape_, 0, chunk.first_segment); };
  for (const Chunk& chunk : leaving) {
    if (chunk.tier == Tier::kHost) backing_->offload_chunk(layer, chunk, chunk_data(chunk));
  }
  if (active >= resident && active < touched) {
    copy_to_device(active_memory_.data() + u(layer) * active_stride_, built, {active, active + 1},
                   {"open, layer", layer});
  }
  if (layer < host_layers_) open_[u(layer)] = active;
  fill_recent(layer, built_rows, built);
  encode_remainders(layer, active, built);
  for (const Chunk& chunk : leaving) {  // last: they may wait for the disk
    if (chunk.tier == Tier::kDisk) backing_->offload_chunk(layer, chunk, chunk_data(chunk));
  }
  out.record(copied);
}

// Segments [first, end) of a layer as contiguous runs within their tier. REQUIRES: none is resident.
std::vector<Chunk> KvCache::backed_chunks(int64_t first, int64_t end) const {
  if (first >= end) return {};
  std::vector<Chunk> chunks = plan_stream(shape_, placement(), end, UINT64_MAX).chunks;
  std::erase_if(chunks, [&](const Chunk& chunk) { return chunk.last_segment <= first; });
  Chunk& front = chunks.front();
  const uint64_t before = segments_bytes(shape_, front.first_segment, std::max(first, front.first_segment));
  front.first_segment = std::max(first, front.first_segment);
  front.offset_bytes += before;
  front.bytes -= before;
  return chunks;
}

// Of the full segments before `end` in host memory: those that an earlier run has sealed, too.
void KvCache::encode_remainders(int64_t layer, int64_t end, const BuiltLayer& built) {
  RowRemainders* const remainders = backing_->remainders();
  if (remainders == nullptr || built.copy.empty() || layer >= host_layers_) return;
  for (int64_t i = resident_; i < end; ++i) {
    if (placement().tier(i) != Tier::kHost || !remainders->wants(layer, i)) continue;
    remainders->encode(layer, i, segment_view(shape_, built.exact + segments_bytes(shape_, 0, i), i), built.copy[u(i)],
                       backing_->out());
  }
}

// Segments of a layer that is built, to where they stay on the device, with the K that was made.
void KvCache::copy_to_device(std::byte* to, const BuiltLayer& built, const Segments& of, TraceName what) {
  const uint64_t before = segments_bytes(shape_, 0, of.first), bytes = segments_bytes(shape_, of.first, of.end);
  backing_->out().copy(to, built.stored + before, bytes, Link::kWithinDevice, what);
  std::byte* const keys = keys_of(to);
  if (keys != nullptr) backing_->out().copy(keys, built.keys + before, bytes, Link::kWithinDevice, what);
}

void KvCache::fill_recent(int64_t layer, const BuiltRows& rows, const BuiltLayer& built) {
  const RowShape shape = shape_.built();
  const auto segment = [&](int64_t index) {
    if (rows.kept > 0) {
      if (const std::optional<KvSegment> there = segment_in_place(layer, index)) return *there;
    }
    const uint64_t before = segments_bytes(shape, 0, index);
    return segment_view(shape, built.exact + before, index, built.keys != nullptr ? built.keys + before : nullptr);
  };
  recent_.fill(layer, rows.end, segment, backing_->out());
}

KvCache::StoredSegment KvCache::stored_segment(int64_t layer, int64_t index, int64_t rows) {
  CHECK(index < segments_for(rows), "segment ", index, " of ", rows, " rows");
  const int64_t resident = resident_segments(layer);
  if (index < resident) return {.data = resident_data(layer, index), .on_device = on_gpu_};
  // Once the active segment is full, the next one takes its place.
  const bool stays = index < segment_of(rows) && placement().tier(index) != Tier::kDisk;
  if (!stays) return {.data = nullptr, .on_device = false};
  return {.data = backing_->host_segment(layer, index), .on_device = false};
}

void KvCache::finish_prefill(int64_t rows) {
  backing_->end_read_back(backing_->out());
  if (RowRemainders* const remainders = backing_->remainders()) remainders->finish_encoding(backing_->out());
  backing_->mark_offloaded();
  backing_->out().synchronize();
  backing_->finish_writes();
  rows_ = rows;
}

bool KvCache::fills_disk(int64_t count) const {
  return backing_->on_disk(sealed_segments(), segment_of(rows_ + count));
}

void KvCache::drain() noexcept { headrace::drain(backing_->out()); }

// ---- decode ----

void KvCache::append(const int32_t* source, int64_t count, Stream& compute) {
  rows_before_ = rows_;
  pending_ = 0;
  while (count > 0) {
    const int64_t here = std::min(count, segment_range(sealed_segments()).end() - rows_);
    append_inside(source, here, compute);
    source += here;
    count -= here;
    const int64_t before = sealed_segments();
    rows_ += here;
    if (sealed_segments() == before) continue;
    if (before >= resident_) offload_segment(compute);
    std::fill(open_.begin(), open_.end(), sealed_segments());
  }
}

void KvCache::append_pending(const int32_t* source, int64_t count, Stream& compute) {
  CHECK(pending_ + count <= kMaxPending, "pending ", pending_, " + ", count);
  recent_.append_pending(source, count, rows_ + pending_, compute);
  pending_ += count;
}

void KvCache::append_inside(const int32_t* source, int64_t count, Stream& compute) {
  CHECK(sealed_segments() < segments_, "the plan's ", segments_, " segments are full");
  if (!recent_.points_at(segment_range(sealed_segments()).begin)) point_at_active(compute);
  recent_.append(source, count, rows_, compute);
}

void KvCache::point_at_active(Stream& compute) {
  std::vector<KvSegment> active;
  for (int64_t layer = 0; layer < shape_.layers; ++layer) active.push_back(active_segment(layer));
  recent_.point_at(active, segment_range(sealed_segments()), compute);
}

// The segment before rows_ is full and not resident. The next one takes its place once it has been offloaded.
void KvCache::offload_segment(Stream& compute) {
  const int64_t full = sealed_segments() - 1;
  const Chunk chunk{.first_segment = full,
                    .last_segment = full + 1,
                    .tier = placement().tier(full),
                    .offset_bytes = placement().offset_bytes(full),
                    .bytes = segments_bytes(shape_, full, full + 1)};
  backing_->begin_offload(compute);
  for (int64_t layer = 0; layer < host_layers_; ++layer) {
    backing_->offload_chunk(layer, chunk, active_memory_.data() + u(layer) * active_stride_);
  }
  backing_->mark_offloaded();
  compute.wait(backing_->offloaded());
}

}  // namespace headrace
