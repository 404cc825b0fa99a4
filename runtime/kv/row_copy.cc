#include "runtime/kv/row_copy.h"

#include <algorithm>
#include <utility>

#include "offload/device/trace.h"
#include "runtime/base/unsigned.h"
#include "runtime/kv/stored_rows.h"

namespace headrace {
namespace {

uint64_t pointer_bytes(const RowShape& rows, int64_t segments) { return 2 * u(segments * rows.layers) * sizeof(void*); }

}  // namespace

uint64_t RowCopy::work_bytes(const RowShape& rows, int64_t context_rows) {
  return whole_pages(pointer_bytes(rows, copy_segments(context_rows)));
}

RowCopy::RowCopy(Device& device, const RowShape& rows, const PartialShape& shape, int64_t context_rows, bool late)
    : exact_(rows.exact()),
      copy_(copy_rows(rows, shape.copy.value())),
      segments_(copy_segments(context_rows)),
      least_context_(shape.least_context()),
      device_(device),
      bytes_(shape.bytes(rows, context_rows)),
      pointers_(device.allocate(pointer_bytes(rows, segments_), "pointers to the copy's segments")),
      host_pointers_(device.allocate_pinned(pointer_bytes(rows, segments_), "pointers to the copy's segments")),
      views_(static_cast<size_t>(rows.layers)) {
  CHECK(!late || !rows.has_low_bit(), "a late copy of low-bit rows");
  if (!late) allocate_late();
}

void RowCopy::allocate_late() {
  memory_ = device_.allocate(bytes_, "the copy of the KV cache");
  void** pointers = host_pointers_.as<void*>();
  for (int64_t layer = 0; layer < copy_.layers; ++layer) {
    for (int64_t i = 0; i < segments_; ++i) views_[static_cast<size_t>(layer)].push_back(view(layer, i));
  }
  for (size_t i = 0; i < static_cast<size_t>(segments_); ++i) {
    for (const std::vector<KvSegment>& layer : views_) *pointers++ = const_cast<void*>(layer[i].k);
    for (const std::vector<KvSegment>& layer : views_) *pointers++ = const_cast<void*>(layer[i].v);
  }
}

KvSegment RowCopy::view(int64_t layer, int64_t index) const {
  const std::byte* const segments = memory_.data() + u(layer) * segments_bytes(copy_, 0, segments_);
  return segment_view(copy_, segments + segments_bytes(copy_, 0, index), index);
}

std::span<const KvSegment> RowCopy::segments(int64_t layer, int64_t deepest) const {
  const int64_t count = segments_for(tail_begin(deepest));
  CHECK(count <= segments_, "position ", deepest, " of ", segments_, " segments");
  return std::span(views_[static_cast<size_t>(layer)]).first(static_cast<size_t>(count));
}

void RowCopy::fill_layer(int64_t layer, int64_t /*rows*/, std::span<const KvSegment> segments,
                         const ScoringQueries& /*queries*/, Stream& stream) {
  if (memory_.bytes() > 0) fill(layer, segments, stream);
}

void RowCopy::fill_late(int64_t layer, std::span<const KvSegment> segments, Stream& stream) {
  fill(layer, segments, stream);
}

// The last segments may be beyond the copy: no query has them before its tail.
void RowCopy::fill(int64_t layer, std::span<const KvSegment> segments, Stream& stream) {
  const TraceSpan span(stream, "copy of the rows");
  if (!std::exchange(pointed_, true)) {
    stream.copy(pointers_.data(), host_pointers_.data(), host_pointers_.bytes(), Link::kHostToDevice, "pointers");
  }
  const std::vector<KvSegment>& views = views_[static_cast<size_t>(layer)];
  for (const KvSegment& segment : segments) {
    const auto index = static_cast<size_t>(segment_of(segment.position));
    if (index < views.size()) quantise_rows(rows_of(exact_, copy_, segment, views[index], 0, segment.rows), stream);
  }
}

void RowCopy::finish_prefill(const KvCache& cache, Stream& /*stream*/) {
  initialised_ = cache.rows() >= least_context_;
}

// A commit appends fewer rows than the ring holds; they are in at most two segments.
void RowCopy::after_commit(const KvCache& cache, bool /*refresh*/, Stream& stream) {
  const TraceSpan span(stream, "copy of the rows");
  const int64_t end = std::min(cache.rows(), segments_capacity(segments_));
  for (int64_t row = cache.committed_before(); row < end;) {
    const int64_t index = segment_of(row);
    const int64_t count = std::min(end, segment_range(index).end()) - row;
    void* const* const planes = pointers_.as<void*>() + index * 2 * copy_.layers;
    cache.recent().quantise({.shape = copy_, .planes = planes, .range = segment_range(index)}, row, count, stream);
    row += count;
  }
  initialised_ = cache.rows() >= least_context_;
}

}  // namespace headrace
