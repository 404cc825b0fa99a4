#include "runtime/session/layer_rows.h"

#include <algorithm>

#include "runtime/kv/stored_rows.h"

namespace headrace {
namespace {

// The destination of row `first`, in the segment at `data`, and of the rows after it, up to the segment's end.
KvRows rows_from(const RowShape& shape, std::byte* data, int64_t first) {
  const SegmentRange range = segment_range(segment_of(first));
  const uint64_t row = static_cast<uint64_t>(first - range.begin), dim = static_cast<uint64_t>(shape.head_dim);
  std::byte* const v = data + static_cast<uint64_t>(range.rows) * shape.k_bytes();
  return {.k = data + row * dim * dtype_bytes(shape.k_type),
          .v = v + row * dim * dtype_bytes(shape.v_type),
          .row_stride = shape.head_dim,
          .head_stride = range.rows * shape.head_dim};
}

}  // namespace

LayerRows::LayerRows(const SessionLayout& layout, KvCache& cache, PartialRows* partial)
    : layout_(layout),
      options_(layout.options()),
      cache_(cache),
      partial_(partial),
      compute_(layout.compute()),
      exact_(layout.shape().exact()),
      count_(segments_for(options_.prompt_tokens)),
      built_{.end = options_.prompt_tokens, .kept = options_.kept_rows},
      buffer_(layout.device().allocate(segments_bytes(exact_, 0, count_), "the layer that prefill builds")),
      left_(layout.device().make_event()) {
  if (layout.shape().has_low_bit()) {
    quantised_ = layout.device().allocate(segments_bytes(layout.shape(), 0, count_), "the same layer, quantised");
  }
  stored_ = layout.shape().has_low_bit() ? quantised_.data() : buffer_.data();
}

KvSegment LayerRows::filled(const RowShape& shape, const std::byte* data, int64_t index) const {
  KvSegment segment = segment_view(shape, data, index);
  segment.rows = static_cast<int32_t>(std::min<int64_t>(segment.rows, options_.prompt_tokens - segment.position));
  return segment;
}

std::byte* LayerRows::exact_segment(int64_t layer, int64_t index) const {
  std::byte* const in_place = options_.kept_rows > 0 ? cache_.segment_in_place(layer, index) : nullptr;
  return in_place != nullptr ? in_place : buffer_.data() + segments_bytes(exact_, 0, index);
}

std::byte* LayerRows::stored_segment(int64_t index) const {
  return stored_ + segments_bytes(layout_.shape(), 0, index);
}

void LayerRows::fill_tables(KvSegment* host, KvSegment* device) {
  const int64_t tables = layout_.segment_tables();
  for (int64_t table = 0; table < tables; ++table) {
    for (int64_t i = 0; i < count_; ++i) host[table * count_ + i] = filled(exact_, exact_segment(table, i), i);
  }
  host_ = {host, static_cast<size_t>(tables * count_)};
  device_ = device;
  compute_.copy(device, host, host_.size_bytes(), Link::kHostToDevice, "segments");
}

std::span<const KvSegment> LayerRows::host_segments(int64_t layer) const {
  return host_.subspan(static_cast<size_t>(first_segment(layer)), static_cast<size_t>(count_));
}

bool LayerRows::restore(int64_t layer) {
  if (options_.prefix != nullptr && !options_.prefix->restore_layer(layer, stored_, *left_, compute_)) return false;
  if (options_.kept_rows > 0) cache_.restore_layer(layer, built_, stored_, *left_, compute_);
  if (layout_.shape().has_low_bit()) dequantise_saved();
  return true;
}

// Rows of a saved prefix are stored rows.
void LayerRows::dequantise_saved() {
  const RowShape& shape = layout_.shape();
  const int64_t saved = layout_.saved_rows();
  for (int64_t index = 0; index < segments_for(saved); ++index) {
    const SegmentRange range = segment_range(index);
    dequantise_rows(
        rows_of(exact_, shape, filled(shape, stored_segment(index), index),
                filled(exact_, exact_segment(0, index), index), 0, std::min(range.end(), saved) - range.begin),
        compute_);
  }
}

void LayerRows::wait_for_buffer(int64_t layer) {
  const bool in_place = options_.kept_rows > 0 && cache_.segment_in_place(layer, count_ - 1) != nullptr;
  if (!in_place) compute_.wait(*left_);
}

void LayerRows::build(const Pass& pass, const LayerWeights& weights, int64_t layer, int64_t first) {
  const RowShape& shape = layout_.shape();
  for (int64_t row = 0; row < pass.rows;) {
    const int64_t index = segment_of(first + row);
    const SegmentRange range = segment_range(index);
    const int64_t here = std::min(pass.rows - row, range.end() - (first + row));
    std::byte* const exact = exact_segment(layer, index);
    rotate_rows(pass, weights, row, here, rows_from(exact_, exact, first + row));
    if (shape.has_low_bit()) {
      RowsParams rows = rows_of(exact_, shape, filled(exact_, exact, index),
                                filled(shape, stored_segment(index), index), first + row - range.begin, here);
      rows.write_back = true;
      quantise_rows(rows, compute_);
    }
    row += here;
  }
}

void LayerRows::store(int64_t layer) {
  PrefixRun* const prefix = options_.prefix;
  if (prefix != nullptr) left_ = layout_.device().make_event();  // the saver waits for one event per layer
  cache_.store_layer(layer, built_,
                     {.stored = stored_,
                      .exact = buffer_.data(),
                      .copy = partial_ != nullptr ? partial_->copy(layer) : std::span<const KvSegment>()},
                     compute_, *left_);
  if (prefix != nullptr) prefix->layer_stored(layer, cache_, stored_, left_);
}

}  // namespace headrace
