#include "runtime/session/int8_prefill.h"

#include <algorithm>

namespace headrace {
namespace {

const std::byte* after_queries(const void* q, const AttentionShape& shape, int64_t queries, int64_t stride) {
  return static_cast<const std::byte*>(q) + static_cast<uint64_t>(queries * stride) * dtype_bytes(shape.type);
}

}  // namespace

Int8PrefillWork Int8PrefillWork::carve(const Size& size, BumpAllocator& allocator) {
  const ModelConfig& config = size.config;
  const AttentionSpec& attention = config.attention();
  const AttentionShape shape = {.queries = size.layer.rows,
                                .heads = LayerWidths::of(config).heads,
                                .kv_heads = attention.kv_heads,
                                .head_dim = attention.head_dim,
                                .q_stride = attention.qkv_width(),
                                .type = size.layer.type,
                                .k_type = size.layer.type,
                                .v_type = size.layer.type,
                                .scale = 1.0f};
  Int8PrefillWork work;
  work.layer = carve_int8_layer(config, size.layer, allocator);
  if (!attends_in_int8(attention)) return work;
  work.kv.rows = static_cast<int64_t>(round_up(static_cast<uint64_t>(size.prompt), kPrefixTile));
  work.kv.data =
      allocator.take_bytes(int8_kv_bytes(size.layer.backend, work.kv.rows, attention.kv_heads, attention.head_dim));
  work.centre = allocator.take<float>(attention.kv_heads * attention.head_dim);
  work.workspace = allocator.take_bytes(int8_attention_workspace_bytes(size.layer.backend, shape));
  return work;
}

int64_t int8_prefill_attention(const PrefillAttentionParams& group, const Int8PrefillWork& work, int64_t converted,
                               Stream& stream) {
  const AttentionShape& shape = group.shape;
  const int64_t end = group.first_position + shape.queries;
  const int64_t plain = std::clamp<int64_t>(kInt8CentreRows - group.first_position, 0, shape.queries);
  if (plain > 0) {
    PrefillAttentionParams first = group;
    first.shape.queries = plain;
    prefill_attention(first, stream);
  }
  if (end < kInt8CentreRows) return converted;
  if (converted == 0) {
    int8_centre({.segments = group.segments,
                 .segment_count = group.segment_count,
                 .k_type = shape.k_type,
                 .kv_heads = shape.kv_heads,
                 .head_dim = shape.head_dim,
                 .centre = work.centre},
                stream);
  }
  const int64_t whole = end / kPrefixTile * kPrefixTile;
  int8_kv({.segments = group.segments,
           .segment_count = group.segment_count,
           .k_type = shape.k_type,
           .v_type = shape.v_type,
           .kv_heads = shape.kv_heads,
           .head_dim = shape.head_dim,
           .centre = work.centre,
           .first = converted,
           .end = whole,
           .out = work.kv},
          stream);
  if (plain == shape.queries) return whole;
  AttentionShape rest = shape;
  rest.queries -= plain;
  const int64_t width = shape.heads * shape.head_dim;
  int8_attention({.shape = rest,
                  .q = after_queries(group.q, shape, plain, shape.q_stride),
                  .kv = work.kv,
                  .centre = work.centre,
                  .segments = group.segments,
                  .out = const_cast<std::byte*>(after_queries(group.out, shape, plain, width)),
                  .workspace = work.workspace,
                  .segment_count = group.segment_count,
                  .first_position = group.first_position + plain,
                  .sinks = group.sinks},
                 stream);
  return whole;
}

}  // namespace headrace
