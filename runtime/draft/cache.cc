#include "runtime/draft/cache.h"

#include <algorithm>

#include "kernels/rows/op.h"
#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

// Runs of the prefix are cut at absolute multiples of this. The ring's length is a multiple too, so no run wraps
// around.
constexpr int64_t kRunRows = kSmallSegmentRows;

}  // namespace

// The window, a query's distance beyond its beginning, and a pass's rows before the oldest are overwritten.
int64_t DraftCacheShape::ring_rows() const {
  if (most_taken_back >= context_rows || chosen_rows > 0)
    return static_cast<int64_t>(round_up(u(context_rows), u(kRunRows)));
  const int64_t wanted = windowed() ? window + kPrefixTile + 2 * pass_rows + most_taken_back : context_rows;
  return static_cast<int64_t>(round_up(u(wanted), u(kRunRows)));
}

uint64_t DraftCacheShape::bytes() const {
  const uint64_t all = rows.bytes_all_layers();
  return whole_pages(all * u(ring_rows())) + whole_pages(all * u(kDraftSinkRows)) + whole_pages(all * u(pass_rows)) +
         whole_pages(all * u(placed_rows()));
}

int64_t DraftCacheShape::first_kept(int64_t position) const {
  if (!windowed()) return 0;
  return std::max<int64_t>(0, position + 1 - window) / kPrefixTile * kPrefixTile;
}

int64_t DraftCacheShape::prefix_end(int64_t deepest) const {
  return windowed() ? tail_begin(deepest) : ceil_div(tail_begin(deepest), kRunRows) * kRunRows;
}

DraftCache::DraftCache(Device& device, const DraftCacheShape& shape) : shape_(shape), ring_rows_(shape.ring_rows()) {
  const uint64_t all = shape.rows.bytes_all_layers();
  ring_ = device.allocate(all * u(ring_rows_), "the draft's KV cache");
  sinks_ = device.allocate(all * u(kDraftSinkRows), "the draft's first rows");
  pass_ = device.allocate(all * u(shape.pass_rows), "the draft's rows of one tree");
  CHECK(shape.chosen_rows == 0 || shape.sinks == SinkRows::kFollowTheWindow);
  if (shape.placed_rows() > 0) {
    placed_memory_ = device.allocate(all * u(shape.placed_rows()), "the draft's rows before its window");
  }
}

// ---- addresses: in each buffer, K of all layers, then V of all layers ----

std::byte* DraftCache::k_of(int64_t layer) const {
  return ring_.data() + u(layer * ring_rows_) * shape_.rows.k_bytes();
}

std::byte* DraftCache::v_of(int64_t layer) const {
  const RowShape& rows = shape_.rows;
  return ring_.data() + u(rows.layers * ring_rows_) * rows.k_bytes() + u(layer * ring_rows_) * rows.v_bytes();
}

KvRows DraftCache::placed_rows_of(int64_t layer) const {
  const RowShape& rows = shape_.rows;
  const int64_t count = shape_.placed_rows();
  std::byte* const v = placed_memory_.data() + u(rows.layers * count) * rows.k_bytes();
  return {.k = placed_memory_.data() + u(layer * count) * rows.k_bytes(),
          .v = v + u(layer * count) * rows.v_bytes(),
          .row_stride = rows.head_dim,
          .head_stride = count * rows.head_dim};
}

DraftCache::Run DraftCache::ring_run(int64_t layer, int64_t position) const {
  const int64_t slot = position % ring_rows_, dim = shape_.rows.head_dim;
  return {.to = {.k = k_of(layer) + u(slot * dim) * dtype_bytes(shape_.rows.k_type),
                 .v = v_of(layer) + u(slot * dim) * dtype_bytes(shape_.rows.v_type),
                 .row_stride = dim,
                 .head_stride = ring_rows_ * dim},
          .rows = ring_rows_ - slot};
}

KvRows DraftCache::sinks(int64_t layer) const {
  const RowShape& rows = shape_.rows;
  std::byte* const v = sinks_.data() + u(rows.layers * kDraftSinkRows) * rows.k_bytes();
  return {.k = sinks_.data() + u(layer * kDraftSinkRows) * rows.k_bytes(),
          .v = v + u(layer * kDraftSinkRows) * rows.v_bytes(),
          .row_stride = rows.head_dim,
          .head_stride = kDraftSinkRows * rows.head_dim};
}

KvRows DraftCache::pass_rows_from(int64_t layer, int64_t pass_row) const {
  CHECK(pass_row >= 0 && pass_row < shape_.pass_rows, "pass_row=", pass_row);
  const TailRows views = tail(layer);
  const RowShape& rows = shape_.rows;
  const auto row_of = [&](const void* base, uint64_t row_bytes) {
    return static_cast<std::byte*>(const_cast<void*>(base)) + u(pass_row) * row_bytes;
  };
  return {.k = row_of(views.pass_k, rows.k_bytes()),
          .v = row_of(views.pass_v, rows.v_bytes()),
          .row_stride = rows.kv_heads * rows.head_dim,
          .head_stride = rows.head_dim};
}

TailRows DraftCache::tail(int64_t layer) const {
  const RowShape& rows = shape_.rows;
  const std::byte* const pass_v = pass_.data() + u(rows.layers * shape_.pass_rows) * rows.k_bytes();
  return {.ring_k = k_of(layer),
          .ring_v = v_of(layer),
          .pass_k = pass_.data() + u(layer * shape_.pass_rows) * rows.k_bytes(),
          .pass_v = pass_v + u(layer * shape_.pass_rows) * rows.v_bytes(),
          .ring_rows = ring_rows_,
          .pass_rows = shape_.pass_rows};
}

void DraftCache::set_rows(int64_t rows, bool sinks_written) {
  rows_ = rows;
  sinks_kept_ = sinks_written;
}

void DraftCache::continue_to(int64_t rows, Stream& compute) {
  rows_ = rows;
  if (shape_.sinks != SinkRows::kGo && !sinks_kept_ && shape_.first_kept(rows_) > 0) keep_sinks(compute);
}

// ---- steps ----

void DraftCache::prefix(int64_t layer, int64_t deepest, std::vector<KvSegment>* out) const {
  out->clear();
  const int64_t first = shape_.first_kept(rows_), end = shape_.prefix_end(deepest);
  if (first > 0 && shape_.sinks == SinkRows::kStay) {
    const KvRows rows = sinks(layer);
    out->push_back({.k = rows.k, .v = rows.v, .position = 0, .rows = kDraftSinkRows, .stride_rows = kDraftSinkRows});
  } else if (first > 0 && shape_.sinks == SinkRows::kFollowTheWindow) {
    placed_segments(layer, first, out);
  }
  for (int64_t row = first; row < end;) {
    const int64_t run_end = std::min(end, row / kRunRows * kRunRows + kRunRows);
    const Run run = ring_run(layer, row);
    out->push_back({.k = run.to.k,
                    .v = run.to.v,
                    .position = static_cast<int32_t>(row),
                    .rows = static_cast<int32_t>(run_end - row),
                    .stride_rows = static_cast<int32_t>(ring_rows_)});
    row = run_end;
  }
}

// Every query sees all of them, so a position need not be exact. A run has few rows, because a thread block reads it
// whole.
void DraftCache::placed_segments(int64_t layer, int64_t first, std::vector<KvSegment>* out) const {
  constexpr int64_t kPlacedRun = 256;
  CHECK(placed_before_ == first, "placed before ", placed_before_, ", the window begins at ", first);
  const KvRows all = placed_rows_of(layer);
  for (int64_t row = 0; row < placed_; row += kPlacedRun) {
    const RowShape& rows = shape_.rows;
    out->push_back({.k = static_cast<std::byte*>(all.k) + u(row * rows.head_dim) * dtype_bytes(rows.k_type),
                    .v = static_cast<std::byte*>(all.v) + u(row * rows.head_dim) * dtype_bytes(rows.v_type),
                    .position = static_cast<int32_t>((first - placed_ + row) / kPrefixTile * kPrefixTile),
                    .rows = static_cast<int32_t>(std::min(kPlacedRun, placed_ - row)),
                    .stride_rows = static_cast<int32_t>(shape_.placed_rows())});
  }
}

void DraftCache::place(const Chunks& chunks, const float* cos_sin, Stream& compute) {
  const RowShape& rows = shape_.rows;
  const int64_t first = shape_.first_kept(rows_);
  if (!sinks_kept_) keep_sinks(compute);
  placed_before_ = first;
  const int64_t first_rows = chunks.count > 0 ? 0 : kDraftSinkRows;
  placed_ = first_rows + chunks.count * chunks.rows;
  CHECK(first > 0 && placed_ <= std::min(shape_.placed_rows(), first), "rows ", placed_, " before ", first);
  const KvRows from = sinks(0), to = placed_rows_of(0);
  place_rows({.sink_k = from.k,
              .sink_v = from.v,
              .ring_k = k_of(0),
              .ring_v = v_of(0),
              .k_out = to.k,
              .v_out = to.v,
              .chosen = chunks.chosen,
              .cos_sin = cos_sin,
              .k_type = rows.k_type,
              .v_type = rows.v_type,
              .layers = rows.layers,
              .kv_heads = rows.kv_heads,
              .head_dim = rows.head_dim,
              .ring_rows = ring_rows_,
              .out_rows = shape_.placed_rows(),
              .table_rows = shape_.context_rows,
              .sinks = first_rows,
              .keep = chunks.count,
              .chunk_rows = chunks.rows,
              .end = first},
             compute);
}

void DraftCache::append(const int32_t* source, int64_t count, Stream& compute) {
  CHECK(shape_.windowed() || rows_ + count <= ring_rows_, "rows ", rows_, " + ", count, " of ", ring_rows_);
  const TailRows views = tail(0);
  commit_rows({.pass_k = views.pass_k,
               .pass_v = views.pass_v,
               .source = source,
               .ring_k = const_cast<void*>(views.ring_k),
               .ring_v = const_cast<void*>(views.ring_v),
               .active_k = nullptr,
               .active_v = nullptr,
               .k_type = shape_.rows.k_type,
               .v_type = shape_.rows.v_type,
               .layers = shape_.rows.layers,
               .kv_heads = shape_.rows.kv_heads,
               .head_dim = shape_.rows.head_dim,
               .pass_rows = shape_.pass_rows,
               .ring_rows = ring_rows_,
               .active_rows = 0,
               .count = count,
               .first_position = rows_,
               .active_position = 0},
              compute);
  rows_ += count;
  if (shape_.sinks != SinkRows::kGo && !sinks_kept_ && shape_.first_kept(rows_) > 0) keep_sinks(compute);
}

// The sinks stay if they exist: such early rows are never provisional.
void DraftCache::rewind(int64_t rows) {
  CHECK(rows >= kDraftSinkRows && rows <= rows_ && rows_ - rows <= shape_.most_taken_back, "rows ", rows, " of ",
        rows_);
  rows_ = rows;
}

void DraftCache::go_back(int64_t rows) {
  CHECK(rows >= kDraftSinkRows && rows <= rows_, "rows ", rows, " of ", rows_);
  rows_ = rows;
}

void DraftCache::keep_first_rows(Stream& compute) {
  if (shape_.windowed() && shape_.sinks != SinkRows::kGo && !sinks_kept_) keep_sinks(compute);
}

// Called once, before the ring loses the first rows: copies them.
void DraftCache::keep_sinks(Stream& compute) {
  const RowShape& rows = shape_.rows;
  const auto copy_head = [&](void* to, const void* from, uint64_t row_bytes, int64_t head) {
    compute.copy(static_cast<std::byte*>(to) + u(head * kDraftSinkRows) * row_bytes,
                 static_cast<const std::byte*>(from) + u(head * ring_rows_) * row_bytes, u(kDraftSinkRows) * row_bytes,
                 Link::kWithinDevice);
  };
  for (int64_t layer = 0; layer < rows.layers; ++layer) {
    const KvRows to = sinks(layer);
    for (int64_t head = 0; head < rows.kv_heads; ++head) {
      copy_head(to.k, k_of(layer), rows.k_bytes() / u(rows.kv_heads), head);
      copy_head(to.v, v_of(layer), rows.v_bytes() / u(rows.kv_heads), head);
    }
  }
  sinks_kept_ = true;
}

}  // namespace headrace
