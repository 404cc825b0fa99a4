// The conversion between the exact rows of a segment and the stored ones, as kernels/rows/op.h takes it. Pure.
#pragma once

#include "cache/layout.h"
#include "kernels/rows/op.h"

namespace headrace {

// `count` rows from `first_row` of the segment on. One of `from` and `to` holds rows of `exact`, the other of `stored`.
inline RowsParams rows_of(const RowShape& exact, const RowShape& stored, const KvSegment& from, const KvSegment& to,
                          int64_t first_row, int64_t count) {
  return {.from = from,
          .to = to,
          .k_type = exact.k_type,
          .v_type = exact.v_type,
          .stored_k_type = stored.k_type,
          .stored_v_type = stored.v_type,
          .kv_heads = stored.kv_heads,
          .head_dim = stored.head_dim,
          .first_row = first_row,
          .count = count};
}

}  // namespace headrace
