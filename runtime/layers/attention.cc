#include "runtime/layers/attention.h"

#include <algorithm>
#include <utility>

#include "cache/attention_parts.h"
#include "offload/device/trace.h"

namespace headrace {
namespace {

// The rows of a segment from `first` on, at most `rows`.
KvSegment part_of(const KvSegment& segment, int32_t first, int32_t rows, const AttentionShape& shape) {
  KvSegment part = segment;
  part.position += first;
  part.rows = std::min(rows, segment.rows - first);
  if (low_bit(shape.k_type) || low_bit(shape.v_type)) {
    part.first_row += first;
    return part;
  }
  const auto at = [&](const void* plane, DType type) {
    return static_cast<const std::byte*>(plane) + row_bytes(type, shape.head_dim) * static_cast<uint64_t>(first);
  };
  part.k = at(segment.k, shape.k_type);
  part.v = at(segment.v, shape.v_type);
  return part;
}

}  // namespace

PrefixAttentionParams attend_tail(const LayerQueries& queries, const TailRows& rows, Stream& stream) {
  const TraceSpan span(stream, "tail");
  tail_attention({.shape = queries.shape,
                  .q = queries.q,
                  .positions = queries.positions,
                  .committed = queries.committed,
                  .path = queries.path,
                  .ring_k = rows.ring_k,
                  .ring_v = rows.ring_v,
                  .pass_k = rows.pass_k,
                  .pass_v = rows.pass_v,
                  .state = queries.state,
                  .path_stride = queries.path_stride,
                  .ring_rows = rows.ring_rows,
                  .pass_rows = rows.pass_rows,
                  .first = queries.first,
                  .sinks = queries.sinks},
                 stream);
  PrefixAttentionParams prefix{};
  prefix.shape = queries.shape;
  prefix.q = queries.q;
  prefix.positions = queries.positions;
  prefix.state = queries.state;
  prefix.scratch = queries.scratch;
  prefix.beside_tail = true;
  return prefix;
}

PrefixFold::PrefixFold(const PrefixAttentionParams& params, PrefixLaunches launches, Stream& stream)
    : params_(params), launches_(std::move(launches)), stream_(stream) {}

void PrefixFold::add(const KvSegment& segment) {
  if (segment.position >= launches_.end_row || segment.rows <= 0) return;  // beyond every query's prefix
  // All of its parts, also those beyond, so that the number of segments says how many launches there are.
  const AttentionShape& shape = params_.shape;
  const int64_t part = launches_.in_parts
                           ? attention_part_rows(segment.position, shape.kv_heads, shape.k_type, shape.v_type)
                           : static_cast<int64_t>(segment.rows);
  const auto rows = static_cast<int32_t>(part);
  for (int32_t first = 0; first < segment.rows; first += rows) {
    const auto left_out = static_cast<int32_t>(
        std::clamp<int64_t>(launches_.first_row - segment.position - first, 0, std::min(rows, segment.rows - first)));
    if (left_out == std::min(rows, segment.rows - first)) continue;
    if (params_.segment_count == launches_.segments) launch();
    params_.segments[params_.segment_count++] = part_of(segment, first + left_out, rows - left_out, shape);
  }
  if (launches_.seen) whole_.push_back(segment);
}

void PrefixFold::flush() {
  if (params_.segment_count > 0) launch();
}

void PrefixFold::finish(void* out) {
  params_.out = out;
  launch();
}

void PrefixFold::launch() {
  const bool any = params_.segment_count > 0;
  const TraceSpan span(stream_, any ? TraceName("prefix from row", params_.segments[0].position) : "attention's end");
  prefix_attention(params_, stream_);
  if (!whole_.empty()) launches_.seen(whole_);
  whole_.clear();
  params_.segment_count = 0;
  params_.beside_tail = false;
}

}  // namespace headrace
