#include "runtime/kv/kv_backing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

// As many whole layers as fit in `most` bytes, at least one.
uint64_t host_piece_bytes(const MemoryPlan& plan, uint64_t most) {
  const uint64_t layer = std::max<uint64_t>(1, plan.placement.host_bytes());
  return layer * std::max<uint64_t>(1, most / layer);
}

std::unique_ptr<SpillFile> make_disk(Device& device, const RowShape& shape, const MemoryPlan& plan,
                                     const SpillOptions& spill) {
  if (plan.disk_bytes == 0) return nullptr;
  return std::make_unique<SpillFile>(device, SpillFileOptions{.folder = spill.folder,
                                                              .bytes = plan.disk_bytes,
                                                              .grain_bytes = segments_bytes(shape, 0, 1),
                                                              .slots = plan.disk_slots,
                                                              .slot_bytes = plan.disk_slot_bytes,
                                                              .body = spill.body});
}

}  // namespace

KvBacking::KvBacking(Device& device, const RowShape& shape, const MemoryPlan& plan, const KvBackingOptions& options)
    : shape_(shape),
      layers_(plan.host_layers),
      placement_(plan.placement),
      disk_(make_disk(device, shape, plan, options.spill)) {
  const uint64_t piece_bytes = host_piece_bytes(plan, options.host_piece_bytes);
  host_memory_ = BackgroundPinnedBuffer(device, plan.host_bytes, piece_bytes, "the KV cache in host memory");
  if (plan.remainder_segments > 0) {
    remainders_ = std::make_unique<RowRemainders>(device, shape, plan, options.host_piece_bytes);
  }
  built_ = device.make_event();
  offloaded_ = device.make_event();
  out_ = device.make_stream("rows out", StreamRole::kCopy);
}

KvBacking::~KvBacking() = default;

uint64_t KvBacking::pinned_bytes(const MemoryPlan& plan) {
  return whole_pages(plan.host_bytes) + RowRemainders::pinned_bytes(plan) +
         u(plan.disk_slots) * whole_pages(plan.disk_slot_bytes);
}

std::byte* KvBacking::host_data(int64_t layer) { return host_memory_.at(u(layer) * placement_.host_bytes()); }

Extent KvBacking::disk_extent(int64_t layer, const Chunk& chunk) const {
  return {.offset = u(layer) * placement_.disk_bytes() + chunk.offset_bytes, .bytes = chunk.bytes};
}

void KvBacking::add_extents(int64_t layer, const std::vector<Chunk>& chunks, std::vector<Extent>* extents) const {
  for (const Chunk& chunk : chunks) {
    if (chunk.tier == Tier::kDisk) extents->push_back(disk_extent(layer, chunk));
  }
}

void KvBacking::begin_offload(Stream& compute) {
  compute.record(*built_);
  out_->wait(*built_);
}

void KvBacking::offload_chunk(int64_t layer, const Chunk& chunk, const std::byte* from) {
  if (chunk.tier == Tier::kDisk) return disk_->write(disk_extent(layer, chunk), from, *out_, {"layer", layer});
  out_->copy(host_data(layer) + chunk.offset_bytes, from, chunk.bytes, Link::kDeviceToHost, {"layer", layer});
}

bool KvBacking::on_disk(int64_t first, int64_t end) const {
  if (!disk_) return false;
  for (int64_t i = first; i < end; ++i) {
    if (placement_.tier(i) == Tier::kDisk) return true;
  }
  return false;
}

void KvBacking::begin_reads(const StreamSchedule& schedule) {
  if (!disk_) return;
  finish_writes();
  std::vector<Extent> extents;
  for (int64_t layer = 0; layer < schedule.layers; ++layer) add_extents(layer, schedule.chunks, &extents);
  if (!extents.empty()) disk_->begin_reads(std::move(extents));
}

std::vector<StagingRing::Part> KvBacking::parts(int64_t layer, const Chunk& chunk) {
  const std::byte* const rows = host_data(layer) + chunk.offset_bytes;
  std::vector<StagingRing::Part> parts;
  enum class Last { kNone, kRows, kRemainders } last = Last::kNone;
  for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) {
    const uint64_t offset = segments_bytes(shape_, chunk.first_segment, i), bytes = segments_bytes(shape_, i, i + 1);
    if (!remainders_ || !remainders_->has(layer, i)) {
      if (std::exchange(last, Last::kRows) == Last::kRows) {
        parts.back().pieces.bytes += bytes;
      } else {
        parts.push_back({.offset = offset, .src = rows + offset, .pieces = {.bytes = bytes}});
      }
      continue;
    }
    // Those of equal segments are at equal distances: one copy, as long as the longest.
    const std::span<const std::byte> data = remainders_->of(layer, i);
    CopyPieces* const before = last == Last::kRemainders ? &parts.back().pieces : nullptr;
    if (before != nullptr && before->dst_stride == bytes) {
      before->bytes = std::max(before->bytes, data.size());
      ++before->count;
    } else {
      parts.push_back(
          {.offset = offset,
           .src = data.data(),
           .pieces = {.bytes = data.size(), .dst_stride = bytes, .src_stride = remainders_bytes(shape_, i, i + 1)}});
    }
    last = Last::kRemainders;
  }
  return parts;
}

bool KvBacking::fetch(int64_t layer, const Chunk& chunk, uint64_t number, StagingRing& ring, LinkQueue& link) {
  if (chunk.tier == Tier::kHost) {
    const std::vector<StagingRing::Part> from = parts(layer, chunk);
    link.enqueue([&](Stream& in) { ring.fill(number, from, in, {"layer", layer}); });
    return true;
  }
  const std::byte* const data = disk_->take();
  if (data == nullptr) return false;
  link.enqueue([&](Stream& in) {
    ring.fill(number, data, chunk.bytes, in, {"from disk, layer", layer});
    disk_->release(in);
  });
  return true;
}

void KvBacking::read_back(int64_t layer, const std::vector<Chunk>& chunks, std::byte* to,
                          const std::vector<Extent>& later, Stream& stream) {
  if (chunks.empty()) return;
  const int64_t first = chunks.front().first_segment;
  if (!reading_back_) {
    std::vector<Extent> extents;
    add_extents(layer, chunks, &extents);
    reading_back_ = !extents.empty();
    extents.insert(extents.end(), later.begin(), later.end());
    if (reading_back_) {
      finish_writes();
      disk_->begin_reads(std::move(extents), SpillFile::Repeat::kNo);
    }
  }
  for (const Chunk& chunk : chunks) {
    std::byte* const here = to + segments_bytes(shape_, first, chunk.first_segment);
    if (chunk.tier == Tier::kHost) {
      stream.copy(here, host_data(layer) + chunk.offset_bytes, chunk.bytes, Link::kHostToDevice,
                  {"kept, layer", layer});
      continue;
    }
    const std::byte* const data = disk_->take();
    CHECK(data != nullptr, "the reads of layer ", layer, " were stopped");
    stream.copy(here, data, chunk.bytes, Link::kHostToDevice, {"kept, from disk, layer", layer});
    disk_->release(stream);
  }
}

void KvBacking::end_read_back(Stream& stream) {
  if (!std::exchange(reading_back_, false)) return;
  stream.synchronize();  // it reads the disk's slots
  disk_->stop_reads();
}

void KvBacking::stop_reads() noexcept {
  if (disk_) disk_->stop_reads();
}

void KvBacking::check() {
  out_->check();
  if (disk_) disk_->check();
}

}  // namespace headrace
