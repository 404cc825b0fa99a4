#include "runtime/kv/window_rows.h"

#include <algorithm>

#include "kernels/rows/op.h"
#include "runtime/base/unsigned.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {
namespace {

// K and V of a layer, of all heads, where row p is the p % rows-th of each head: a slot, a snapshot, or a segment,
// whose first row is at a multiple of its size.
struct RowRing {
  const std::byte* data;
  int64_t rows;
};

RowRing segment_ring(const RowShape& shape, const BuiltRing& built, int64_t index) {
  return {.data = built.data + ring_offset(shape, built.rows, index), .rows = segment_range(index).rows};
}

// Rows as bytes: a plane's rows of `row_bytes` at `from` of K and V, an even number.
struct BytesOfRows {
  const std::byte *k, *v;  // v: null: K alone
  std::byte *to_k, *to_v;
  uint64_t row_bytes;
};

void copy_bytes(const BytesOfRows& rows, const FillRingParams& sizes, Stream& stream) {
  FillRingParams params = sizes;
  const uint64_t before = u(sizes.first_position % sizes.stride_rows) * rows.row_bytes;
  params.k = rows.k + before;
  params.v = rows.v != nullptr ? rows.v + before : nullptr;
  params.ring_k = rows.to_k;
  params.ring_v = rows.to_v;
  params.k_type = params.v_type = DType::kBF16;  // any of two bytes
  params.head_dim = static_cast<int64_t>(rows.row_bytes / 2);
  fill_ring(params, stream);
}

// Rows that follow each other in both.
void copy_run(const RowShape& shape, const RowRing& from, const RowRing& to, int64_t first, int64_t count,
              Stream& stream) {
  const FillRingParams sizes{.k = nullptr,
                             .v = nullptr,
                             .ring_k = nullptr,
                             .ring_v = nullptr,
                             .k_type = DType::kBF16,
                             .v_type = DType::kBF16,
                             .kv_heads = shape.kv_heads,
                             .head_dim = 0,
                             .stride_rows = from.rows,
                             .ring_rows = to.rows,
                             .count = count,
                             .first_position = first};
  std::byte* const destination = const_cast<std::byte*>(to.data);
  const std::byte* const v = from.data + u(from.rows) * shape.k_bytes();
  std::byte* const to_v = destination + u(to.rows) * shape.k_bytes();
  const uint64_t k_values = row_value_bytes(shape.k_type, shape.head_dim),
                 v_values = row_value_bytes(shape.v_type, shape.head_dim);
  if (k_values == v_values) {
    copy_bytes({from.data, v, destination, to_v, k_values}, sizes, stream);
  } else {
    copy_bytes({from.data, nullptr, destination, nullptr, k_values}, sizes, stream);
    copy_bytes({v, nullptr, to_v, nullptr, v_values}, sizes, stream);
  }
  const auto parameters = [&](DType type, const std::byte* plane, std::byte* to_plane) {
    const uint64_t bytes = row_parameter_bytes(type, shape.head_dim), heads = u(shape.kv_heads);
    if (bytes == 0) return;
    const uint64_t values = heads * row_value_bytes(type, shape.head_dim);
    copy_bytes({plane + u(from.rows) * values, nullptr, to_plane + u(to.rows) * values, nullptr, bytes}, sizes, stream);
  };
  parameters(shape.k_type, from.data, destination);
  parameters(shape.v_type, v, to_v);
}

void copy_rows(const RowShape& shape, const RowRing& from, const RowRing& to, int64_t first, int64_t end,
               Stream& stream) {
  while (first < end) {
    const int64_t here = std::min({end - first, from.rows - first % from.rows, to.rows - first % to.rows});
    copy_run(shape, from, to, first, here, stream);
    first += here;
  }
}

// Calls `copy` with the segments that rows before `position` are in, and with the rows of each.
template <typename Copy>
void each_segment(const WindowShape& shape, int64_t position, const Copy& copy) {
  for (int64_t row = std::max<int64_t>(0, position - shape.snapshot_rows()); row < position;) {
    const int64_t index = segment_of(row), end = std::min(position, segment_range(index).end());
    copy(index, row, end);
    row = end;
  }
}

}  // namespace

void save_window(const WindowShape& shape, const BuiltRing& built, int64_t position, std::byte* part, Stream& stream) {
  each_segment(shape, position, [&](int64_t index, int64_t first, int64_t end) {
    copy_rows(shape.rows, segment_ring(shape.rows, built, index), {part, shape.snapshot_rows()}, first, end, stream);
  });
}

void restore_window(const WindowShape& shape, const std::byte* part, int64_t position, const BuiltRing& built,
                    Stream& stream) {
  each_segment(shape, position, [&](int64_t index, int64_t first, int64_t end) {
    copy_rows(shape.rows, {part, shape.snapshot_rows()}, segment_ring(shape.rows, built, index), first, end, stream);
  });
}

// The tail's ring has the slots, too, if no type is low-bit. It has room for pending rows, which overwrite none that a
// query sees: the slot that grows has more.
static_assert(kWindowSlotRows >= kMaxPending && kTailRingRows <= kWindowSlotRows);
int64_t WindowRows::tail_rows(const WindowShape& shape) {
  return shape.rows.has_low_bit() ? kTailRingRows : shape.slots * kWindowSlotRows;
}

uint64_t WindowRows::bytes(const WindowShape& shape, int64_t pass_rows) {
  if (shape.rows.layers == 0) return 0;
  const uint64_t slots = shape.rows.has_low_bit() ? whole_pages(shape.bytes()) : 0;
  return slots + whole_pages(RecentRows::ring_bytes(shape.rows, tail_rows(shape))) +
         whole_pages(RecentRows::pass_bytes(shape.rows, pass_rows)) +
         whole_pages(RecentRows::pointer_bytes(shape.rows));
}

WindowRows::WindowRows(Device& device, const WindowShape& shape, int64_t pass_rows)
    : shape_(shape), recent_(device, shape.rows, pass_rows, tail_rows(shape)) {
  if (shape.rows.has_low_bit()) memory_ = device.allocate(shape.bytes(), "rows of layers with a window");
}

KvSegment WindowRows::slot(int64_t layer, int64_t index) const {
  if (!shape_.rows.has_low_bit()) {
    const RecentRows::Views ring = recent_.views(layer);
    const auto at = [&](const void* plane, DType type) {
      const uint64_t before = u(index % shape_.slots * kWindowSlotRows) * row_value_bytes(type, shape_.rows.head_dim);
      return static_cast<const std::byte*>(plane) + before;
    };
    return {.k = at(ring.ring_k, shape_.rows.k_type),
            .v = at(ring.ring_v, shape_.rows.v_type),
            .position = static_cast<int32_t>(index * kWindowSlotRows),
            .rows = static_cast<int32_t>(kWindowSlotRows),
            .stride_rows = static_cast<int32_t>(ring.ring_rows)};
  }
  const std::byte* const data = memory_.data() + u(layer * shape_.slots + index % shape_.slots) * shape_.slot_bytes();
  return {.k = data,
          .v = data + u(kWindowSlotRows) * shape_.rows.k_bytes(),
          .position = static_cast<int32_t>(index * kWindowSlotRows),
          .rows = static_cast<int32_t>(kWindowSlotRows),
          .stride_rows = static_cast<int32_t>(kWindowSlotRows)};
}

void WindowRows::store_layer(int64_t layer, int64_t rows, const std::byte* stored, const std::byte* exact,
                             Stream& compute) {
  const RowShape exact_shape = shape_.rows.exact();
  const int64_t last = (rows - 1) / kWindowSlotRows, ring = shape_.built_ring_rows(rows);
  const int64_t oldest = shape_.rows.has_low_bit() ? std::max<int64_t>(0, last + 1 - shape_.slots) : last + 1;
  for (int64_t index = oldest; index <= last; ++index) {
    const int64_t first = index * kWindowSlotRows, end = std::min(rows, first + kWindowSlotRows);
    copy_rows(shape_.rows, segment_ring(shape_.rows, {const_cast<std::byte*>(stored), ring}, segment_of(first)),
              {static_cast<const std::byte*>(slot(layer, index).k), kWindowSlotRows}, first, end, compute);
  }
  recent_.fill(
      layer, rows,
      [&](int64_t index) { return segment_view(exact_shape, exact + ring_offset(exact_shape, ring, index), index); },
      compute);
}

std::vector<KvSegment> WindowRows::slots(int64_t layer, int64_t end_row) const {
  std::vector<KvSegment> slots;
  const int64_t end = slots_end(end_row);
  for (int64_t index = std::max<int64_t>(0, end - shape_.slots); index < end; ++index) {
    slots.push_back(slot(layer, index));
  }
  return slots;
}

void WindowRows::append(const int32_t* source, int64_t count, Stream& compute) {
  pending_ = 0;
  while (count > 0) {
    const int64_t index = rows_ / kWindowSlotRows, begin = index * kWindowSlotRows;
    if (shape_.rows.has_low_bit() && !recent_.points_at(begin)) {
      std::vector<KvSegment> growing;
      for (int64_t layer = 0; layer < shape_.rows.layers; ++layer) growing.push_back(slot(layer, index));
      recent_.point_at(growing, {.begin = begin, .rows = kWindowSlotRows}, compute);
    }
    const int64_t here = std::min(count, begin + kWindowSlotRows - rows_);
    if (shape_.rows.has_low_bit()) {
      recent_.append(source, here, rows_, compute);
    } else {
      recent_.append_pending(source, here, rows_, compute);  // the ring alone
    }
    source += here;
    count -= here;
    rows_ += here;
  }
}

void WindowRows::append_pending(const int32_t* source, int64_t count, Stream& compute) {
  recent_.append_pending(source, count, rows_ + pending_, compute);
  pending_ += count;
}

}  // namespace headrace
