#include "runtime/kv/recent_rows.h"

#include <algorithm>

#include "kernels/rows/op.h"
#include "runtime/base/unsigned.h"

namespace headrace {

uint64_t RecentRows::ring_bytes(const RowShape& shape, int64_t ring_rows) {
  return u(shape.layers) * u(ring_rows) * shape.exact().bytes();
}
uint64_t RecentRows::pass_bytes(const RowShape& shape, int64_t pass_rows) {
  return u(shape.layers) * u(pass_rows) * shape.exact().bytes();
}
uint64_t RecentRows::pointer_bytes(const RowShape& shape) { return 2 * u(shape.layers) * sizeof(void*); }

RecentRows::RecentRows(Device& device, const RowShape& shape, int64_t pass_rows, int64_t ring_rows)
    : shape_(shape), exact_(shape.exact()), pass_rows_(pass_rows), ring_rows_(ring_rows) {
  ring_memory_ = device.allocate(ring_bytes(shape, ring_rows), "the KV cache's tail");
  pass_memory_ = device.allocate(pass_bytes(shape, pass_rows), "the KV rows of one pass");
  pointers_ = device.allocate(pointer_bytes(shape), "pointers to the active segment");
  host_pointers_ = device.allocate_pinned(pointer_bytes(shape), "pointers to the active segment");
}

RecentRows::Views RecentRows::views(int64_t layer) const {  // each: K of all layers, then V of all layers
  const uint64_t l = u(layer), layers = u(shape_.layers), ring = u(ring_rows_), pass = u(pass_rows_);
  const std::byte* const ring_v = ring_memory_.data() + layers * ring * exact_.k_bytes();
  const std::byte* const pass_v = pass_memory_.data() + layers * pass * exact_.k_bytes();
  return {.ring_k = ring_memory_.data() + l * ring * exact_.k_bytes(),
          .ring_v = ring_v + l * ring * exact_.v_bytes(),
          .pass_k = pass_memory_.data() + l * pass * exact_.k_bytes(),
          .pass_v = pass_v + l * pass * exact_.v_bytes(),
          .ring_rows = ring_rows_};
}

KvRows RecentRows::pass_destination(int64_t layer, const int32_t* first) const {
  const Views to = views(layer);
  return {.k = const_cast<void*>(to.pass_k),
          .v = const_cast<void*>(to.pass_v),
          .row_stride = shape_.kv_heads * shape_.head_dim,
          .head_stride = shape_.head_dim,
          .first = first};
}

void RecentRows::fill(int64_t layer, int64_t rows, const std::function<KvSegment(int64_t index)>& segment,
                      Stream& stream) {
  const Views to = views(layer);
  const uint64_t k_row = exact_.k_bytes() / u(exact_.kv_heads), v_row = exact_.v_bytes() / u(exact_.kv_heads);
  for (int64_t row = std::max<int64_t>(0, rows - ring_rows_); row < rows;) {
    const int64_t index = segment_of(row);
    const SegmentRange range = segment_range(index);
    const int64_t count = std::min(rows, range.end()) - row;
    const KvSegment from = segment(index);
    fill_ring({.k = static_cast<const std::byte*>(from.k) + u(row - range.begin) * k_row,
               .v = static_cast<const std::byte*>(from.v) + u(row - range.begin) * v_row,
               .ring_k = const_cast<void*>(to.ring_k),
               .ring_v = const_cast<void*>(to.ring_v),
               .k_type = exact_.k_type,
               .v_type = exact_.v_type,
               .kv_heads = shape_.kv_heads,
               .head_dim = shape_.head_dim,
               .stride_rows = range.rows,
               .ring_rows = ring_rows_,
               .count = count,
               .first_position = row},
              stream);
    row += count;
  }
}

void RecentRows::quantise(const StoredRows& to, int64_t first, int64_t count, Stream& stream) const {
  const Views from = views(0);
  quantise_ring({.ring_k = from.ring_k,
                 .ring_v = from.ring_v,
                 .to_k = to.planes,
                 .to_v = to.planes + shape_.layers,
                 .k_type = exact_.k_type,
                 .v_type = exact_.v_type,
                 .stored_k_type = to.shape.k_type,
                 .stored_v_type = to.shape.v_type,
                 .layers = shape_.layers,
                 .kv_heads = shape_.kv_heads,
                 .head_dim = shape_.head_dim,
                 .ring_rows = ring_rows_,
                 .to_rows = to.range.rows,
                 .first_position = first,
                 .count = count,
                 .to_position = to.range.begin},
                stream);
}

void RecentRows::point_at(std::span<const KvSegment> growing, const SegmentRange& range, Stream& compute) {
  CHECK(growing.size() == u(shape_.layers));
  compute.synchronize();  // the last upload has been read
  void** const pointers = host_pointers_.as<void*>();
  for (size_t layer = 0; layer < growing.size(); ++layer) {
    pointers[layer] = const_cast<void*>(growing[layer].k);
    pointers[growing.size() + layer] = const_cast<void*>(growing[layer].v);
  }
  compute.copy_small(pointers_.data(), host_pointers_.data(), pointers_.bytes(), Link::kHostToDevice, "pointers");
  growing_ = range;
}

void RecentRows::append(const int32_t* source, int64_t count, int64_t first, Stream& compute) {
  const bool quantises = shape_.has_low_bit();
  commit(source, count, first, !quantises, compute);
  if (!quantises) return;
  quantise({.shape = shape_, .planes = pointers_.as<void*>(), .range = growing_}, first, count, compute);
}

void RecentRows::append_pending(const int32_t* source, int64_t count, int64_t first, Stream& compute) {
  commit(source, count, first, false, compute);
}

void RecentRows::commit(const int32_t* source, int64_t count, int64_t first, bool to_segment, Stream& compute) {
  const Views to = views(0);
  void** const pointers = pointers_.as<void*>();
  commit_rows({.pass_k = to.pass_k,
               .pass_v = to.pass_v,
               .source = source,
               .ring_k = const_cast<void*>(to.ring_k),
               .ring_v = const_cast<void*>(to.ring_v),
               .active_k = to_segment ? pointers : nullptr,
               .active_v = to_segment ? pointers + shape_.layers : nullptr,
               .k_type = exact_.k_type,
               .v_type = exact_.v_type,
               .layers = shape_.layers,
               .kv_heads = shape_.kv_heads,
               .head_dim = shape_.head_dim,
               .pass_rows = pass_rows_,
               .ring_rows = ring_rows_,
               .active_rows = to_segment ? growing_.rows : 0,
               .count = count,
               .first_position = first,
               .active_position = to_segment ? growing_.begin : 0},
              compute);
}

}  // namespace headrace
