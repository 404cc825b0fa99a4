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

LayerRows::LayerRows(const SessionLayout& layout, Sequence& sequence)
    : layout_(layout),
      options_(layout.options()),
      sequence_(sequence),
      cache_(sequence.cache()),
      compute_(layout.compute()),
      count_(segments_for(options_.prompt_tokens)),
      built_{.end = options_.prompt_tokens, .kept = options_.kept_rows},
      left_(layout.device().make_event()) {
  const RowShape &rows = layout.shape(), &windows = layout.window_shape().rows;
  const auto bytes = [&](const RowShape& a, const RowShape& b) {
    return std::max(segments_bytes(a, 0, count_), segments_bytes(b, 0, count_));
  };
  const bool apart = layout.config().shares_rows();
  buffer_ = layout.device().allocate(bytes(rows.exact(), apart ? RowShape{} : windows.exact()),
                                     "the layer that prefill builds");
  if (apart) windows_ = layout.device().allocate(bytes({}, windows.exact()), "the layer with a window that it builds");
  if (rows.has_low_bit()) {
    quantised_ = layout.device().allocate(bytes(rows, windows), "the same layer, quantised");
  }
}

const RowShape& LayerRows::stored_shape(const StatePlace& layer) const {
  return is_window(layer) ? layout_.window_shape().rows : layout_.shape();
}

KvSegment LayerRows::filled(const RowShape& shape, const std::byte* data, int64_t index) const {
  KvSegment segment = segment_view(shape, data, index);
  segment.rows = static_cast<int32_t>(std::min<int64_t>(segment.rows, options_.prompt_tokens - segment.position));
  return segment;
}

// Null: the segment is in the buffer.
std::byte* LayerRows::in_place(const StatePlace& layer, int64_t index) const {
  return options_.kept_rows > 0 && !is_window(layer) ? cache_.segment_in_place(layer.place, index) : nullptr;
}

std::byte* LayerRows::exact_segment(const StatePlace& layer, int64_t index) const {
  std::byte* const there = in_place(layer, index);
  return there != nullptr ? there : exact_data(layer) + segments_bytes(stored_shape(layer).exact(), 0, index);
}

std::byte* LayerRows::stored_segment(const StatePlace& layer, int64_t index) const {
  return stored_data(layer) + segments_bytes(stored_shape(layer), 0, index);
}

int64_t LayerRows::table(const StatePlace& layer) const {
  if (is_window(layer)) return layout_.row_tables();
  return layout_.row_tables() > 1 ? layer.place : 0;
}

void LayerRows::fill_tables(KvSegment* host, KvSegment* device) {
  const int64_t tables = layout_.segment_tables(), of_rows = layout_.row_tables();
  for (int64_t table = 0; table < tables; ++table) {
    const StatePlace layer{.group = table < of_rows ? StateGroup::kRows : StateGroup::kWindow,
                           .place = table < of_rows ? table : 0};
    const RowShape exact = stored_shape(layer).exact();
    for (int64_t i = 0; i < count_; ++i) host[table * count_ + i] = filled(exact, exact_segment(layer, i), i);
  }
  host_ = {host, static_cast<size_t>(tables * count_)};
  device_ = device;
  compute_.copy(device, host, host_.size_bytes(), Link::kHostToDevice, "segments");
}

std::span<const KvSegment> LayerRows::host_segments(const StatePlace& layer) const {
  return host_.subspan(static_cast<size_t>(table(layer) * count_), static_cast<size_t>(count_));
}

bool LayerRows::restore(const StatePlace& layer) {
  if (layout_.saved_rows() == 0) return true;
  if (is_window(layer)) {
    restore_rows_of_window(layer);
  } else {
    PrefixRun* const prefix = options_.prefix;
    if (prefix != nullptr && !prefix->restore_layer(layer.place, stored_data(layer), *left_, compute_)) return false;
    if (options_.kept_rows > 0) cache_.restore_layer(layer.place, built_, stored_data(layer), *left_, compute_);
  }
  if (stored_shape(layer).has_low_bit()) dequantise_saved(layer);
  return true;
}

void LayerRows::restore_rows_of_window(const StatePlace& layer) {
  const int64_t saved = layout_.saved_rows();
  compute_.wait(*left_);
  restore_window(layout_.window_shape(), sequence_.snapshots()->part(saved, layer.place), saved, stored_data(layer),
                 compute_);
}

// Rows of a saved prefix are stored rows.
void LayerRows::dequantise_saved(const StatePlace& layer) {
  const RowShape &shape = stored_shape(layer), exact = shape.exact();
  const int64_t saved = layout_.saved_rows();
  const int64_t first = is_window(layer) ? std::max<int64_t>(0, saved - layout_.window_shape().snapshot_rows()) : 0;
  for (int64_t index = segment_of(first); index < segments_for(saved); ++index) {
    const SegmentRange range = segment_range(index);
    const int64_t begin = std::max(range.begin, first);
    dequantise_rows(rows_of(exact, shape, filled(shape, stored_segment(layer, index), index),
                            filled(exact, exact_segment(layer, index), index), begin - range.begin,
                            std::min(range.end(), saved) - begin),
                    compute_);
  }
}

void LayerRows::wait_for_buffer(const StatePlace& layer) {
  if (in_place(layer, count_ - 1) == nullptr) compute_.wait(*left_);
}

void LayerRows::build(const Pass& pass, const LayerWeights& weights, const StatePlace& layer, int64_t first) {
  const RowShape &shape = stored_shape(layer), exact_shape = shape.exact();
  for (int64_t row = 0; row < pass.rows;) {
    const int64_t index = segment_of(first + row);
    const SegmentRange range = segment_range(index);
    const int64_t here = std::min(pass.rows - row, range.end() - (first + row));
    std::byte* const exact = exact_segment(layer, index);
    rotate_rows(pass, weights, row, here, rows_from(exact_shape, exact, first + row));
    if (shape.has_low_bit()) {
      RowsParams rows = rows_of(exact_shape, shape, filled(exact_shape, exact, index),
                                filled(shape, stored_segment(layer, index), index), first + row - range.begin, here);
      rows.write_back = true;
      quantise_rows(rows, compute_);
    }
    row += here;
  }
}

void LayerRows::store(const StatePlace& layer) {
  PrefixRun* const prefix = options_.prefix;
  if (prefix != nullptr) left_ = layout_.device().make_event();  // the saver waits for one event per layer
  if (is_window(layer)) return store_window(layer);
  PartialRows* const partial = sequence_.partial();
  cache_.store_layer(layer.place, built_,
                     {.stored = stored_data(layer),
                      .exact = exact_data(layer),
                      .copy = partial != nullptr ? partial->copy(layer.place) : std::span<const KvSegment>()},
                     compute_, *left_);
  if (prefix != nullptr) prefix->layer_stored(layer.place, cache_, stored_data(layer), left_);
}

void LayerRows::store_window(const StatePlace& layer) {
  const int64_t rows = options_.prompt_tokens;
  sequence_.windows()->store_layer(layer.place, rows, stored_data(layer), exact_data(layer), compute_);
  StateSnapshots* const snapshots = sequence_.snapshots();
  int64_t at = snapshots != nullptr ? snapshots->next(layout_.saved_rows(), rows) : 0;
  for (; at > 0; at = snapshots->next(at, rows)) {
    save_window(layout_.window_shape(), stored_data(layer), at, snapshots->part(at, layer.place), compute_);
  }
  compute_.record(*left_);
}

}  // namespace headrace
