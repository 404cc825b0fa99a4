#include "kernels/chunks/op.h"

#include <bit>
#include <cmath>

#include "kernels/chunks/bodies.h"
#include "kernels/cpu/dispatch.h"

namespace headrace {

using kernels::ChunkScoresParams;
using kernels::ChunkStatesParams;
using kernels::dispatch;

namespace {

void check_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "heads=", heads, " kv_heads=", kv_heads);
  CHECK(head_dim > 0 && head_dim % 2 == 0 && head_dim <= kMaxChunkHeadDim, "head_dim=", head_dim);
}

void check_call(const ScoreChunksParams& p) {
  check_heads(p.heads, p.kv_heads, p.head_dim);
  CHECK(!low_bit(p.type), dtype_name(p.type));
  CHECK(
      p.k_type != DType::kInt4 || (p.head_dim >= kInt4Group && std::has_single_bit(static_cast<uint64_t>(p.head_dim))),
      "head_dim=", p.head_dim);
  CHECK(p.rows > 0 && p.rows <= INT32_MAX && p.chunk_rows > 0, "rows=", p.rows, " chunk_rows=", p.chunk_rows);
  CHECK(std::isfinite(p.scale), "scale=", p.scale);
  CHECK(p.q != nullptr && p.segments != nullptr && p.workspace != nullptr && p.scores != nullptr);
  int64_t end = 0;
  for (int64_t i = 0; i < p.segment_count && end < p.rows; ++i) {
    const KvSegment& segment = p.segments[i];
    kernels::check_segment(segment);
    CHECK(low_bit(p.k_type) || segment.first_row == 0, "first_row=", segment.first_row);
    CHECK(segment.position == end, "position=", segment.position, " after row ", end);
    end += segment.rows;
  }
  CHECK(end >= p.rows, "rows=", p.rows, " in segments of ", end);
}

ChunkScoresParams with_workspace(const ScoreChunksParams& call) {
  const int64_t chunks = ceil_div(call.rows, call.chunk_rows);
  auto* const rotated_q = static_cast<float*>(call.workspace);
  float* const states = rotated_q + call.heads * call.head_dim;
  ChunkScoresParams all{call, chunks, rotated_q, states, states + call.heads * chunks * 2};
  all.call.segments = nullptr;  // the caller's
  return all;
}

// Adds the segments that hold the rows of the chunks from `run->first` on, as many as there is room for, and the number
// of these chunks. `next`: a segment at or before the first one; becomes that one.
void add_segments(const ScoreChunksParams& call, ChunkStatesParams* run, int64_t* next) {
  const int64_t begin = run->first * call.chunk_rows;
  const auto end_of = [&](int64_t i) { return call.segments[i].position + call.segments[i].rows; };
  while (end_of(*next) <= begin) ++*next;
  run->segment_count = 0;
  int64_t end = begin;
  for (int64_t i = *next; end < call.rows && run->segment_count < kMaxPrefixSegments; ++i) {
    if (call.segments[i].rows == 0) continue;
    run->segments[run->segment_count++] = call.segments[i];
    end = end_of(i);
  }
  run->count = end < call.rows ? end / call.chunk_rows - run->first : run->all.chunks - run->first;
  CHECK(run->count > 0, "a chunk of ", call.chunk_rows, " rows is in more than ", kMaxPrefixSegments, " segments");
}

}  // namespace

uint64_t score_chunks_workspace_bytes(int64_t heads, int64_t head_dim, int64_t chunks) {
  check_heads(heads, heads, head_dim);
  CHECK(chunks >= 0, "chunks=", chunks);
  return static_cast<uint64_t>(heads * (head_dim + 2 * chunks + 2)) * sizeof(float);
}

void score_chunks(const ScoreChunksParams& params, Stream& stream) {
  check_call(params);
  ChunkStatesParams run{.all = with_workspace(params), .first = 0, .count = 0, .segment_count = 0, .segments = {}};
  for (int64_t next = 0; run.first < run.all.chunks; run.first += run.count) {
    add_segments(params, &run, &next);
    dispatch(kernels::cpu::chunk_states, kernels::cuda::chunk_states, run, stream);
  }
  dispatch(kernels::cpu::chunk_scores, kernels::cuda::chunk_scores, run.all, stream);
}

}  // namespace headrace
