#include "kernels/blocks/op.h"

#include "kernels/blocks/bodies.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/segment.h"

namespace headrace {

using kernels::check_segment;
using kernels::dispatch;

namespace {

void check_rows(int64_t kv_heads, int64_t head_dim) {
  CHECK(kv_heads > 0, "kv_heads=", kv_heads);
  CHECK(head_dim > 0 && head_dim % 2 == 0 && head_dim <= kMaxBlockHeadDim, "head_dim=", head_dim);
}

void check_blocks(int64_t first, int64_t count, int64_t blocks) {
  CHECK(first >= 0 && count >= 0 && first <= blocks && count <= blocks - first, "blocks ", first, " + ", count, " of ",
        blocks);
}

void check_stored(DType type, DType stored) {
  CHECK(!low_bit(type) && (stored == DType::kInt8 || stored == type), dtype_name(type), " rows from ",
        dtype_name(stored));
}

}  // namespace

void summarise_blocks(const SummariseBlocksParams& params, Stream& stream) {
  check_rows(params.kv_heads, params.head_dim);
  check_blocks(params.first_block, params.count, params.blocks);
  CHECK(params.layers >= 0 && params.count * kBlockRows <= params.ring_rows, "layers=", params.layers,
        " count=", params.count, " ring_rows=", params.ring_rows);
  CHECK(params.layers <= 1 || params.k_layer_stride >= params.kv_heads * params.ring_rows * params.head_dim,
        "k_layer_stride=", params.k_layer_stride, " of ", params.kv_heads, " x ", params.ring_rows, " x ",
        params.head_dim);
  if (params.count == 0 || params.layers == 0) return;
  CHECK(params.k != nullptr && params.summaries != nullptr);
  dispatch(kernels::cpu::summarise_blocks, kernels::cuda::summarise_blocks, params, stream);
}

int64_t score_blocks_workspace_floats(int64_t kv_heads, int64_t head_dim) {
  check_rows(kv_heads, head_dim);
  return kv_heads * 2 * head_dim;
}

void score_blocks(const ScoreBlocksParams& params, Stream& stream) {
  check_rows(params.kv_heads, params.head_dim);
  check_blocks(params.first_block, params.count, params.blocks);
  CHECK(params.queries > 0 && params.heads > 0 && params.heads % params.kv_heads == 0, "queries=", params.queries,
        " heads=", params.heads, " kv_heads=", params.kv_heads);
  CHECK(params.q_stride >= params.heads * params.head_dim, "q_stride=", params.q_stride, " heads=", params.heads,
        " head_dim=", params.head_dim);
  CHECK(params.count <= kMaxBlocks, "count=", params.count);
  CHECK(params.score != BlockScore::kRecent);
  if (params.count == 0) return;
  CHECK(params.q != nullptr && params.summaries != nullptr && params.scores != nullptr && params.workspace != nullptr);
  // The bodies reduce in two ways: with one query, all three are the mean.
  ScoreBlocksParams body = params;
  if (params.reduce == BlockReduce::kLast) {
    body.q = static_cast<const std::byte*>(params.q) +
             (params.queries - 1) * params.q_stride * static_cast<int64_t>(dtype_bytes(params.type));
    body.queries = 1;
  }
  if (body.queries == 1) body.reduce = BlockReduce::kMean;
  dispatch(kernels::cpu::score_blocks, kernels::cuda::score_blocks, body, stream);
}

void select_blocks(const SelectBlocksParams& params, Stream& stream) {
  CHECK(params.kv_heads > 0, "kv_heads=", params.kv_heads);
  CHECK(params.keep > 0 && params.keep <= kMaxKeptBlocks && params.keep <= params.count && params.count <= kMaxBlocks,
        "keep=", params.keep, " count=", params.count);
  CHECK(params.first_block >= 0 && params.first_block <= INT32_MAX - kMaxBlocks, "first_block=", params.first_block);
  CHECK(params.scores != nullptr && params.chosen != nullptr);
  dispatch(kernels::cpu::select_blocks, kernels::cuda::select_blocks, params, stream);
}

void gather_blocks(const GatherBlocksParams& params, Stream& stream) {
  check_rows(params.kv_heads, params.head_dim);
  CHECK(params.keep >= 0 && params.keep * kBlockRows <= params.out_rows, "keep=", params.keep,
        " out_rows=", params.out_rows);
  CHECK(params.segment_count >= 0 && params.segment_count <= kMaxPrefixSegments,
        "segment_count=", params.segment_count);
  check_stored(params.k_type, params.stored_k_type);
  check_stored(params.v_type, params.stored_v_type);
  for (int64_t i = 0; i < params.segment_count; ++i) check_segment(params.segments[i]);
  if (params.keep == 0 || params.segment_count == 0) return;
  CHECK(params.chosen != nullptr && params.k_out != nullptr && params.v_out != nullptr);
  dispatch(kernels::cpu::gather_blocks, kernels::cuda::gather_blocks, params, stream);
}

void copy_window(const CopyWindowParams& params, Stream& stream) {
  check_rows(params.kv_heads, params.head_dim);
  CHECK(params.layers >= 0 && params.count >= 0 && params.count <= params.ring_rows, "layers=", params.layers,
        " count=", params.count, " ring_rows=", params.ring_rows);
  CHECK(params.origin >= 0 && params.first_position >= params.origin &&
            params.count <= params.out_rows - (params.first_position - params.origin),
        "positions ", params.first_position, " + ", params.count, " in a window of ", params.out_rows, " from ",
        params.origin);
  const auto out_elements = static_cast<uint64_t>(params.kv_heads * params.out_rows * params.head_dim);
  const auto check_layers = [&](uint64_t layer_bytes, DType type) {
    CHECK(params.layers <= 1 || layer_bytes >= out_elements * dtype_bytes(type), "layer_bytes=", layer_bytes, " for ",
          out_elements, " elements");
    CHECK(layer_bytes % dtype_bytes(type) == 0, "layer_bytes=", layer_bytes);
  };
  check_layers(params.k_layer_bytes, params.k_type);
  check_layers(params.v_layer_bytes, params.v_type);
  if (params.count == 0 || params.layers == 0) return;
  CHECK(params.ring_k != nullptr && params.ring_v != nullptr && params.k_out != nullptr && params.v_out != nullptr);
  dispatch(kernels::cpu::copy_window, kernels::cuda::copy_window, params, stream);
}

}  // namespace headrace
