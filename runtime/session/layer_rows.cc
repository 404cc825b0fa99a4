#include "runtime/session/layer_rows.h"

#include <algorithm>

#include "runtime/kv/stored_rows.h"

namespace headrace {
namespace {

// The destination of row `first` of a segment, and of the rows after it, up to the segment's end.
KvRows rows_from(const RowShape& shape, const KvSegment& segment, int64_t first) {
  const auto at = [&](const void* plane, DType type) {
    const uint64_t before = static_cast<uint64_t>((first - segment.position) * shape.head_dim) * dtype_bytes(type);
    return static_cast<std::byte*>(const_cast<void*>(plane)) + before;
  };
  return {.k = at(segment.k, shape.k_type),
          .v = at(segment.v, shape.v_type),
          .row_stride = shape.head_dim,
          .head_stride = segment.stride_rows * shape.head_dim};
}

}  // namespace

LayerRows::LayerRows(const SessionLayout& layout, Sequence& sequence)
    : layout_(layout),
      options_(layout.options()),
      sequence_(sequence),
      cache_(sequence.cache()),
      compute_(layout.compute()),
      count_(segments_for(options_.prompt_tokens)),
      ring_rows_(layout.window_shape().built_ring_rows(options_.prompt_tokens)),
      built_{.end = options_.prompt_tokens, .kept = options_.kept_rows},
      left_(layout.device().make_event()) {
  const RowShape &rows = layout.shape(), &windows = layout.window_shape().rows;
  const auto bytes = [&](const RowShape& a, const RowShape& b) {
    return std::max(readable_bytes(a, 0, count_), ring_bytes(b, ring_rows_));
  };
  const bool apart = layout.config().shares_rows();
  buffer_ = layout.device().allocate(bytes(rows.built(), apart ? RowShape{} : windows.built()),
                                     "the layer that prefill builds");
  if (apart) windows_ = layout.device().allocate(bytes({}, windows.built()), "the layer with a window that it builds");
  if (rows.has_low_bit()) {
    quantised_ = layout.device().allocate(bytes(rows, windows), "the same layer, quantised");
  }
}

const RowShape& LayerRows::stored_shape(const StatePlace& layer) const {
  return is_window(layer) ? layout_.window_shape().rows : layout_.shape();
}

KvSegment LayerRows::filled(KvSegment segment) const {
  segment.rows = static_cast<int32_t>(std::min<int64_t>(segment.rows, options_.prompt_tokens - segment.position));
  return segment;
}

// None: the segment is in the buffer.
std::optional<KvSegment> LayerRows::in_place(const StatePlace& layer, int64_t index) const {
  if (options_.kept_rows == 0 || is_window(layer)) return std::nullopt;
  return cache_.segment_in_place(layer.place, index);
}

std::byte* LayerRows::keys(const StatePlace& layer) const {
  const RowShape& shape = stored_shape(layer);
  return shape.values_alone ? exact_data(layer) + segments_bytes(shape, 0, count_) : nullptr;
}

KvSegment LayerRows::exact_segment(const StatePlace& layer, int64_t index) const {
  if (const std::optional<KvSegment> there = in_place(layer, index)) return filled(*there);
  const RowShape shape = stored_shape(layer).built();
  const uint64_t before = offset(layer, shape, index);
  std::byte* const made = keys(layer);
  return filled(segment_view(shape, exact_data(layer) + before, index, made != nullptr ? made + before : nullptr));
}

std::byte* LayerRows::stored_segment(const StatePlace& layer, int64_t index) const {
  return stored_data(layer) + offset(layer, stored_shape(layer), index);
}

uint64_t LayerRows::offset(const StatePlace& layer, const RowShape& shape, int64_t index) const {
  return is_window(layer) ? ring_offset(shape, ring_rows_, index) : segments_bytes(shape, 0, index);
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
    for (int64_t i = 0; i < count_; ++i) host[table * count_ + i] = exact_segment(layer, i);
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

void LayerRows::make_keys(const StatePlace& layer, const KeyMaker& maker) {
  const RowShape& shape = stored_shape(layer);
  const int64_t saved = layout_.saved_rows();
  if (!shape.values_alone || saved == 0) return;
  std::vector<KvSegment> segments;
  for (int64_t index = 0; index < segments_for(saved); ++index) {
    if (in_place(layer, index)) continue;
    segments.push_back(exact_segment(layer, index));
    segments.back().rows =
        static_cast<int32_t>(std::min<int64_t>(segments.back().rows, saved - segments.back().position));
  }
  make_keys_of(shape, maker, segments, compute_);
}

void LayerRows::restore_rows_of_window(const StatePlace& layer) {
  const int64_t saved = layout_.saved_rows();
  compute_.wait(*left_);
  restore_window(layout_.window_shape(), sequence_.snapshots()->part(saved, layer.place), saved,
                 {stored_data(layer), ring_rows_}, compute_);
}

// Rows of a saved prefix are stored rows.
void LayerRows::dequantise_saved(const StatePlace& layer) {
  const RowShape &shape = stored_shape(layer), exact = shape.exact();
  const int64_t saved = layout_.saved_rows();
  const int64_t first = is_window(layer) ? std::max<int64_t>(0, saved - layout_.window_shape().snapshot_rows()) : 0;
  for (int64_t index = segment_of(first); index < segments_for(saved); ++index) {
    const SegmentRange range = segment_range(index);
    const int64_t begin = std::max(range.begin, first);
    dequantise_rows(rows_of(exact, shape, filled(segment_view(shape, stored_segment(layer, index), index)),
                            exact_segment(layer, index), begin - range.begin, std::min(range.end(), saved) - begin),
                    compute_);
  }
}

void LayerRows::wait_for_buffer(const StatePlace& layer) {
  if (!in_place(layer, count_ - 1)) compute_.wait(*left_);
}

void LayerRows::build(const Pass& pass, const LayerWeights& weights, const StatePlace& layer, int64_t first) {
  const RowShape &shape = stored_shape(layer), exact_shape = shape.exact();
  for (int64_t row = 0; row < pass.rows;) {
    const int64_t index = segment_of(first + row);
    const SegmentRange range = segment_range(index);
    const int64_t here = std::min(pass.rows - row, range.end() - (first + row));
    const KvSegment exact = exact_segment(layer, index);
    rotate_rows(pass, weights, row, here, rows_from(exact_shape, exact, first + row));
    if (shape.has_low_bit()) {
      RowsParams rows =
          rows_of(exact_shape, shape, exact, filled(segment_view(shape, stored_segment(layer, index), index)),
                  first + row - range.begin, here);
      rows.write_back = true;
      quantise_rows(rows, compute_);
    }
    row += here;
  }
  if (is_window(layer)) save_windows(layer, first, first + pass.rows);
}

void LayerRows::save_windows(const StatePlace& layer, int64_t first, int64_t end) {
  StateSnapshots* const snapshots = sequence_.snapshots();
  int64_t at = snapshots != nullptr ? snapshots->next(first, end) : 0;
  for (; at > 0; at = snapshots->next(at, end)) {
    save_window(layout_.window_shape(), {stored_data(layer), ring_rows_}, at, snapshots->part(at, layer.place),
                compute_);
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
                      .keys = keys(layer),
                      .copy = partial != nullptr ? partial->copy(layer.place) : std::span<const KvSegment>()},
                     compute_, *left_);
  if (prefix != nullptr) prefix->layer_stored(layer.place, cache_, stored_data(layer), left_);
}

void LayerRows::store_window(const StatePlace& layer) {
  const int64_t rows = options_.prompt_tokens;
  sequence_.windows()->store_layer(layer.place, rows, stored_data(layer), exact_data(layer), compute_);
  compute_.record(*left_);
}

}  // namespace headrace
