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

}  // namespace

struct Retrieval::Views {
  std::byte* workspace;
  float* scores;
  int32_t* chosen;
  std::array<std::byte*, kLayers> queries;
};

Retrieval::Views Retrieval::carve(const RetrievalSetup& setup, BumpAllocator* allocator) {
  const int64_t chunks = ceil_div(setup.context_rows, setup.shape.rows);
  Views views;
  views.workspace = allocator->take_bytes(score_chunks_workspace_bytes(setup.heads, setup.head_dim, chunks));
  views.scores = allocator->take<float>(chunks);
  views.chosen = allocator->take<int32_t>(1 + setup.shape.chunks);
  for (std::byte*& queries : views.queries) {
    queries = allocator->take_bytes(static_cast<uint64_t>(setup.pass_rows) * setup.query_bytes);
  }
  return views;
}

uint64_t Retrieval::bytes(const RetrievalSetup& setup) {
  return whole_pages(carved_bytes([&](BumpAllocator& allocator) { carve(setup, &allocator); }));
}

Retrieval::Retrieval(Device& device, const RetrievalSetup& setup, Stream& stream)
    : setup_(setup), memory_(device.allocate(bytes(setup), "the draft's choice of chunks")) {
  BumpAllocator allocator(memory_.data());
  const Views views = carve(setup, &allocator);
  scores_ = views.scores;
  workspace_ = views.workspace;
  chosen_ = views.chosen;
  queries_ = views.queries;
  stream.copy(chosen_, &kFirstChunk, sizeof kFirstChunk, Link::kHostToDevice);
}

void Retrieval::attach(const KvCache& target) {
  layers_.clear();
  const int64_t count = target.shape().layers, half = count / 2, later = count * 3 / 4;
  if (half == later || target.host_layers() > half) return;
  layers_ = {{.layer = half, .queries = queries_[0]}, {.layer = later, .queries = queries_[1]}};
}

void Retrieval::keep_queries(const PassQueries& queries, Stream& stream) {
  for (Scored& scored : layers_) {
    if (scored.layer != queries.layer) continue;
    scored.row_bytes = static_cast<uint64_t>(queries.stride) * dtype_bytes(queries.type);
    CHECK(queries.rows <= setup_.pass_rows && scored.row_bytes <= setup_.query_bytes, "rows ", queries.rows, " of ",
          setup_.pass_rows, ", bytes ", scored.row_bytes, " of ", setup_.query_bytes);
    stream.copy(scored.queries, queries.q, static_cast<uint64_t>(queries.rows) * scored.row_bytes, Link::kWithinDevice);
  }
}

void Retrieval::score(const void* q, DType type, int64_t layer, bool add, const KvCache& target, Stream& stream) {
  segments_.clear();
  for (int64_t i = 0; i < segments_for(target.rows()); ++i) segments_.push_back(target.resident_segment(layer, i));
  score_chunks({.q = q,
                .segments = segments_.data(),
                .workspace = workspace_,
                .scores = scores_,
                .type = type,
                .k_type = target.shape().k_type,
                .segment_count = static_cast<int64_t>(segments_.size()),
                .rows = target.rows(),
                .chunk_rows = setup_.shape.rows,
                .heads = setup_.heads,
                .kv_heads = setup_.kv_heads,
                .head_dim = setup_.head_dim,
                .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(setup_.head_dim))),
                .add = add},
               stream);
}

void Retrieval::observe_query(const TargetQuery& query, const KvCache& target, Stream& stream) {
  if (!query.refresh && ++passes_ % setup_.shape.every != 0) return;
  const int64_t rows = target.rows();
  if (rows <= setup_.shape.rows) return;
  const TraceSpan span(stream, "look back");
  if (layers_.empty()) score(query.q, query.type, target.shape().layers - 1, false, target, stream);
  for (const Scored& scored : layers_) {
    const std::byte* const q = scored.queries + static_cast<uint64_t>(query.row) * scored.row_bytes;
    score(q, query.type, scored.layer, &scored != layers_.data(), target, stream);
  }
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
