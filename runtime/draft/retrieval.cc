#include "runtime/draft/retrieval.h"

#include <algorithm>
#include <cmath>

#include "kernels/blocks/op.h"
#include "kernels/chunks/op.h"
#include "offload/device/trace.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {
namespace {

constexpr int32_t kFirstChunk = 0;  // is always among the chosen

struct Views {
  std::byte* workspace;
  float* scores;
  int32_t* chosen;
};

Views carve_views(const RetrievalSetup& setup, BumpAllocator* allocator) {
  const int64_t chunks = ceil_div(setup.context_rows, setup.shape.rows);
  Views views;
  views.workspace = allocator->take_bytes(score_chunks_workspace_bytes(setup.heads, setup.head_dim, chunks));
  views.scores = allocator->take<float>(chunks);
  views.chosen = allocator->take<int32_t>(1 + setup.shape.chunks);
  return views;
}

}  // namespace

uint64_t Retrieval::bytes(const RetrievalSetup& setup) {
  return whole_pages(carved_bytes([&](BumpAllocator& allocator) { carve_views(setup, &allocator); }));
}

Retrieval::Retrieval(Device& device, const RetrievalSetup& setup, Stream& stream)
    : setup_(setup), memory_(device.allocate(bytes(setup), "the draft's choice of chunks")) {
  BumpAllocator allocator(memory_.data());
  const Views views = carve_views(setup, &allocator);
  scores_ = views.scores;
  workspace_ = views.workspace;
  chosen_ = views.chosen;
  stream.copy(chosen_, &kFirstChunk, sizeof kFirstChunk, Link::kHostToDevice);
}

void Retrieval::observe_query(const TargetQuery& query, const KvCache& target, Stream& stream) {
  if (!query.refresh && ++passes_ % setup_.shape.every != 0) return;
  const int64_t last = target.shape().layers - 1, rows = target.rows();
  if (rows <= setup_.shape.rows) return;
  const TraceSpan span(stream, "look back");
  segments_.clear();
  for (int64_t i = 0; i < segments_for(rows); ++i) segments_.push_back(target.resident_segment(last, i));
  score_chunks({.q = query.q,
                .segments = segments_.data(),
                .workspace = workspace_,
                .scores = scores_,
                .type = query.type,
                .k_type = target.shape().k_type,
                .segment_count = static_cast<int64_t>(segments_.size()),
                .rows = rows,
                .chunk_rows = setup_.shape.rows,
                .heads = setup_.heads,
                .kv_heads = setup_.kv_heads,
                .head_dim = setup_.head_dim,
                .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(setup_.head_dim)))},
               stream);
  scored_rows_ = rows;
  due_ = true;
}

Retrieval::Choice Retrieval::choose(int64_t end, Stream& stream) {
  due_ = false;
  const int64_t whole = std::min(end, scored_rows_) / setup_.shape.rows,
                keep = std::min(whole - 1, setup_.shape.chunks);
  if (whole <= 0) return {};
  if (keep > 0) {
    select_blocks({.scores = scores_ + 1,
                   .chosen = chosen_ + 1,
                   .kv_heads = 1,
                   .count = whole - 1,
                   .keep = keep,
                   .first_block = 1},
                  stream);
  }
  return {.chunks = chosen_, .count = 1 + keep};
}

}  // namespace headrace
