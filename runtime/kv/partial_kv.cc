#include "runtime/kv/partial_kv.h"

#include <algorithm>

#include "offload/device/trace.h"
#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

static_assert(kSelectRows == kBlockRows);
constexpr int64_t kSinkBlocks = kSinkRows / kBlockRows;
constexpr int64_t kViewRows = 256;  // rows of a run per attention call: enough calls to fill a GPU
static_assert(kViewRows % kPrefixTile == 0);

}  // namespace

PartialKv::Work PartialKv::carve(const RowShape& rows, const PartialShape& shape, int64_t context_rows,
                                 BumpAllocator& allocator) {
  Work work;
  work.scores = allocator.take<float>(rows.kv_heads * block_count(context_rows));
  work.workspace = allocator.take<float>(score_blocks_workspace_floats(rows.kv_heads, rows.head_dim));
  work.chosen = allocator.take<int32_t>(rows.layers * rows.kv_heads * shape.blocks);
  work.sinks = allocator.take<int32_t>(rows.kv_heads * kSinkBlocks);
  work.origin = allocator.take<int32_t>(1);
  return work;
}

uint64_t PartialKv::work_bytes(const RowShape& rows, const PartialShape& shape, int64_t context_rows) {
  return whole_pages(carved_bytes([&](BumpAllocator& allocator) { carve(rows, shape, context_rows, allocator); }));
}

uint64_t PartialKv::pinned_bytes(const RowShape& rows) {
  return whole_pages(u(rows.kv_heads * kSinkBlocks + 1) * sizeof(int32_t));
}

PartialKv::PartialKv(Device& device, const RowShape& rows, const PartialOptions& options, int64_t context_rows,
                     bool late)
    : stored_(rows),
      rows_(rows.exact()),
      options_(options),
      context_rows_(context_rows),
      index_blocks_(block_count(context_rows)),
      device_(device),
      work_memory_(device.allocate(work_bytes(rows, options.shape, context_rows), "the choice of blocks")),
      host_sinks_(device.allocate_pinned(u(rows.kv_heads * kSinkBlocks + 1) * sizeof(int32_t), "the first blocks")) {
  CHECK(options.shape.blocks > 0 && options.shape.blocks <= kMaxKeptBlocks, "blocks=", options.shape.blocks);
  const int64_t window = options.shape.window;
  CHECK(window > 0 && window <= kTailWindow && window % kPrefixTile == 0, "window=", window);
  BumpAllocator allocator(work_memory_.data());
  work_ = carve(rows, options.shape, context_rows, allocator);
  for (int64_t i = 0; i < rows.kv_heads * kSinkBlocks; ++i) {
    host_sinks_.as<int32_t>()[i] = static_cast<int32_t>(i % kSinkBlocks);
  }
  if (late) {
    CHECK(!low_bit(rows.k_type), "summaries of int8 keys");
    index_ = device.allocate(block_index_bytes(rows_, context_rows) / u(rows.layers), "the summaries of a layer");
  } else {
    allocate_blocks();
  }
}

void PartialKv::allocate_blocks() {
  index_ = {};
  memory_ = device_.allocate(options_.shape.bytes(rows_, context_rows_), "the partial KV");
  index_ = device_.allocate(block_index_bytes(rows_, context_rows_), "the block summaries");
  has_memory_ = true;
  make_views();
}

// ---- addresses: K of all layers, then V of all layers ----

std::byte* PartialKv::k_of(int64_t layer) const {
  return memory_.data() + u(layer * options_.shape.rows()) * rows_.k_bytes();
}

std::byte* PartialKv::v_of(int64_t layer) const {
  const uint64_t keys = u(rows_.layers * options_.shape.rows()) * rows_.k_bytes();
  return memory_.data() + keys + u(layer * options_.shape.rows()) * rows_.v_bytes();
}

std::byte* PartialKv::summaries(int64_t layer) const {
  return index_.data() + (has_memory_ ? u(layer) : 0) * 2 * u(index_blocks_) * rows_.k_bytes();
}

int32_t* PartialKv::chosen(int64_t layer) const {
  return work_.chosen + layer * rows_.kv_heads * options_.shape.blocks;
}

void PartialKv::make_views() {
  const PartialShape& shape = options_.shape;
  const uint64_t dim = u(rows_.head_dim);
  views_.resize(static_cast<size_t>(rows_.layers));
  for (int64_t layer = 0; layer < rows_.layers; ++layer) {
    const auto add = [&](int64_t first, int64_t count) {
      views_[static_cast<size_t>(layer)].push_back({.k = k_of(layer) + u(first) * dim * dtype_bytes(rows_.k_type),
                                                    .v = v_of(layer) + u(first) * dim * dtype_bytes(rows_.v_type),
                                                    .position = static_cast<int32_t>(first),
                                                    .rows = static_cast<int32_t>(count),
                                                    .stride_rows = static_cast<int32_t>(shape.rows())});
    };
    const auto add_all = [&](int64_t first, int64_t end) {
      for (; first < end; first += kViewRows) add(first, std::min(kViewRows, end - first));
    };
    add(0, kSinkRows);
    add_all(kSinkSlots, kSinkSlots + shape.retrieved_rows());
    add_all(shape.window_row(), shape.rows());
  }
}

// ---- from the full KV ----

void PartialKv::fill_layer(int64_t layer, int64_t rows, std::span<const KvSegment> segments,
                           const ScoringQueries& queries, Stream& stream) {
  const TraceSpan span(stream, "partial KV");
  if (layer == 0) {
    stream.copy(work_.sinks, host_sinks_.data(), u(rows_.kv_heads * kSinkBlocks) * sizeof(int32_t), Link::kHostToDevice,
                "first blocks");
  }
  summarise(layer, segments, stream);
  summarised_ = rows / kBlockRows;
  if (rows < options_.shape.least_context()) return;
  choose(layer, rows, 0, queries, stream);
  if (has_memory_) gather(layer, rows_, segments, stream);
}

void PartialKv::fill_late(int64_t layer, std::span<const KvSegment> segments, Stream& stream) {
  const TraceSpan span(stream, "partial KV");
  summarise(layer, segments, stream);
  if (summarised_ * kBlockRows >= options_.shape.least_context()) gather(layer, stored_, segments, stream);
}

// Whole blocks only: the last segment may be active.
void PartialKv::summarise(int64_t layer, std::span<const KvSegment> segments, Stream& stream) {
  for (const KvSegment& segment : segments) {
    summarise_blocks({.k = segment.k,
                      .summaries = summaries(layer),
                      .k_type = rows_.k_type,
                      .layers = 1,
                      .kv_heads = rows_.kv_heads,
                      .head_dim = rows_.head_dim,
                      .ring_rows = segment.stride_rows,
                      .blocks = index_blocks_,
                      .k_layer_stride = 0,
                      .first_block = segment.position / kBlockRows,
                      .count = segment.rows / kBlockRows},
                     stream);
  }
}

void PartialKv::finish_prefill(const KvCache& cache, Stream& stream) {
  if (cache.rows() < options_.shape.least_context()) return;
  begin_window(cache, stream);
  initialised_ = options_.queries == BlockQueries::kRecent;
  sinks_filled_ = true;
}

// ---- a refresh ----

void PartialKv::choose(int64_t layer, int64_t committed, int64_t pending, const ScoringQueries& queries,
                       Stream& stream) {
  const int64_t end = options_.shape.window_begin(committed, pending) / kBlockRows;
  // With kRecent there are no others to choose from, so their scores have no effect.
  const bool recent = options_.score == BlockScore::kRecent;
  const int64_t first = recent ? end - options_.shape.blocks : kSinkBlocks, count = end - first;
  score_blocks({.q = queries.q,
                .summaries = summaries(layer),
                .scores = work_.scores,
                .workspace = work_.workspace,
                .type = queries.type,
                .k_type = rows_.k_type,
                .queries = queries.count,
                .heads = queries.heads,
                .kv_heads = rows_.kv_heads,
                .head_dim = rows_.head_dim,
                .q_stride = queries.stride,
                .blocks = index_blocks_,
                .first_block = first,
                .count = count,
                .score = recent ? BlockScore::kQuest : options_.score,
                .reduce = options_.reduce},
               stream);
  select_blocks({.scores = work_.scores,
                 .chosen = chosen(layer),
                 .kv_heads = rows_.kv_heads,
                 .count = count,
                 .keep = options_.shape.blocks,
                 .first_block = first},
                stream);
}

void PartialKv::gather(int64_t layer, std::span<const KvSegment> segments, Stream& stream) {
  gather(layer, stored_, segments, stream);
}

void PartialKv::gather(int64_t layer, const RowShape& from, std::span<const KvSegment> segments, Stream& stream) {
  for (; segments.size() > kMaxPrefixSegments; segments = segments.subspan(kMaxPrefixSegments)) {
    gather(layer, from, segments.first(kMaxPrefixSegments), stream);
  }
  if (segments.empty()) return;
  GatherBlocksParams params{};
  params.k_type = rows_.k_type;
  params.v_type = rows_.v_type;
  params.stored_k_type = from.k_type;
  params.stored_v_type = from.v_type;
  params.kv_heads = rows_.kv_heads;
  params.head_dim = rows_.head_dim;
  params.out_rows = options_.shape.rows();
  params.segment_count = static_cast<int64_t>(segments.size());
  std::copy(segments.begin(), segments.end(), params.segments);
  if (!sinks_filled_ && segments.front().position == 0) {
    params.chosen = work_.sinks;
    params.keep = kSinkBlocks;
    gather_into(layer, 0, params, stream);
  }
  params.chosen = chosen(layer);
  params.keep = options_.shape.blocks;
  gather_into(layer, kSinkSlots, params, stream);
}

void PartialKv::gather_into(int64_t layer, int64_t first_row, GatherBlocksParams params, Stream& stream) {
  const uint64_t dim = u(rows_.head_dim);
  params.k_out = k_of(layer) + u(first_row) * dim * dtype_bytes(rows_.k_type);
  params.v_out = v_of(layer) + u(first_row) * dim * dtype_bytes(rows_.v_type);
  gather_blocks(params, stream);
}

// ---- commits ----

void PartialKv::before_commit(const KvCache& cache, bool refresh, Stream& stream) {
  if (refresh) begin_window(cache, stream);
}

void PartialKv::after_commit(const KvCache& cache, bool refresh, Stream& stream) {
  const int64_t complete = cache.rows() / kBlockRows;
  if (complete > summarised_) {
    summarise_blocks({.k = cache.recent().views(0).ring_k,
                      .summaries = index_.data(),
                      .k_type = rows_.k_type,
                      .layers = rows_.layers,
                      .kv_heads = rows_.kv_heads,
                      .head_dim = rows_.head_dim,
                      .ring_rows = kTailRingRows,
                      .blocks = index_blocks_,
                      .k_layer_stride = rows_.kv_heads * kTailRingRows * rows_.head_dim,
                      .first_block = summarised_,
                      .count = complete - summarised_},
                     stream);
    summarised_ = complete;
  }
  initialised_ = refresh;  // rows committed otherwise are in no window
  if (!refresh) return;
  sinks_filled_ = true;
  copy_window(cache, cache.committed_before(), cache.rows(), stream);
}

// The window of a refresh, or of prefill; the rows that the refresh commits follow.
void PartialKv::begin_window(const KvCache& cache, Stream& stream) {
  origin_ = options_.shape.window_begin(cache.rows(), cache.pending_rows());
  copy_window(cache, origin_, cache.rows(), stream);
  if (tail_first() == nullptr) return;
  int32_t* const host = host_sinks_.as<int32_t>() + rows_.kv_heads * kSinkBlocks;  // no copy reads it: a step has ended
  *host = static_cast<int32_t>(origin_);
  stream.copy_small(work_.origin, host, sizeof(int32_t), Link::kHostToDevice, "the window's first row");
}

// No query sees more of the window than fits before its tail: cache/partial.h.
void PartialKv::copy_window(const KvCache& cache, int64_t first, int64_t end, Stream& stream) {
  const int64_t count = std::min(end, origin_ + kWindowRows) - first;
  if (count <= 0) return;
  const RecentRows::Views tail = cache.recent().views(0);
  const uint64_t row = u(options_.shape.window_row()), dim = u(rows_.head_dim);
  headrace::copy_window({.ring_k = tail.ring_k,
                         .ring_v = tail.ring_v,
                         .k_out = k_of(0) + row * dim * dtype_bytes(rows_.k_type),
                         .v_out = v_of(0) + row * dim * dtype_bytes(rows_.v_type),
                         .k_type = rows_.k_type,
                         .v_type = rows_.v_type,
                         .layers = rows_.layers,
                         .kv_heads = rows_.kv_heads,
                         .head_dim = rows_.head_dim,
                         .ring_rows = kTailRingRows,
                         .out_rows = options_.shape.rows(),
                         .k_layer_bytes = u(options_.shape.rows()) * rows_.k_bytes(),
                         .v_layer_bytes = u(options_.shape.rows()) * rows_.v_bytes(),
                         .origin = origin_,
                         .first_position = first,
                         .count = count},
                        stream);
}

}  // namespace headrace
