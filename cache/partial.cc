#include "cache/partial.h"

namespace headrace {

const char* partial_kind_name(PartialKind kind) {
  constexpr const char* kNames[] = {"auto", "blocks", "int4", "int8", "exact"};
  return kNames[static_cast<size_t>(kind)];
}

uint64_t PartialShape::bytes(const RowShape& shape, int64_t context_rows) const {
  if (copy) {
    return static_cast<uint64_t>(shape.layers) *
           segments_bytes(copy_rows(shape, *copy), 0, copy_segments(context_rows));
  }
  return blocks > 0 ? shape.bytes_all_layers() * static_cast<uint64_t>(rows()) : 0;
}

RowShape copy_rows(const RowShape& shape, DType type) {
  CHECK(copy_type_fits(type, shape.head_dim), "head_dim=", shape.head_dim);
  RowShape copy = shape;
  copy.k_type = copy.v_type = type;
  copy.values_alone = false;
  return copy;
}

int64_t copy_segments(int64_t context_rows) { return segments_for(tail_begin(context_rows)); }

int64_t block_count(int64_t context_rows) { return ceil_div(context_rows, kSelectRows); }

uint64_t block_index_bytes(const RowShape& shape, int64_t context_rows) {
  return 2 * shape.k_bytes() * static_cast<uint64_t>(shape.layers * block_count(context_rows));
}

const char* step_mode_name(StepMode mode) {
  constexpr const char* kNames[] = {"full", "partial", "refresh"};
  return kNames[static_cast<size_t>(mode)];
}

StepMode step_mode(const StepState& state) {
  if (state.least_context == 0 || state.rows < state.least_context) return StepMode::kFull;
  if (!state.initialised) return StepMode::kRefresh;
  const bool room = state.pending + state.deepest + 1 <= state.most_pending;
  return room && state.accepted <= state.interval ? StepMode::kPartial : StepMode::kRefresh;
}

}  // namespace headrace
