// The K of segments that have V alone (cache/layout.h), made where attention reads them.
#pragma once

#include <cstdint>
#include <span>

#include "cache/layout.h"
#include "kernels/rows/op.h"

namespace headrace {

// What a layer's K is made with, in device memory.
struct KeyMaker {
  const void* weight = nullptr;  // [head_dim], of weight_type
  DType weight_type = DType::kBF16;
  const float* cos_sin = nullptr;  // [table_rows, head_dim]
  int64_t table_rows = 0;
};

// Enqueues the K of the rows that these segments have.
inline void make_keys_of(const RowShape& shape, const KeyMaker& maker, std::span<const KvSegment> segments,
                         Stream& stream) {
  MakeKeysParams params{};
  params.weight = maker.weight;
  params.weight_type = maker.weight_type;
  params.cos_sin = maker.cos_sin;
  params.table_rows = maker.table_rows;
  params.type = shape.v_type;
  params.kv_heads = shape.kv_heads;
  params.head_dim = shape.head_dim;
  for (size_t i = 0; i < segments.size(); ++i) {
    const KvSegment& segment = segments[i];
    params.runs[params.count++] = {.v = segment.v,
                                   .k = const_cast<void*>(segment.k),
                                   .position = segment.position,
                                   .rows = segment.rows,
                                   .row_stride = shape.head_dim,
                                   .head_stride = segment.stride_rows * shape.head_dim};
    if (params.count < kMaxKeyRuns && i + 1 < segments.size()) continue;
    make_keys(params, stream);
    params.count = 0;
  }
}

}  // namespace headrace
