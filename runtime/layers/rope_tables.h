// The tables that RoPE reads: for each position, cosines and sines of a head's angles. One for q and k, or one for k
// and one for q where q is scaled by its position. Views; owns nothing.
#pragma once

#include <cstdint>

#include "offload/device/stream.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/model/config.h"

namespace headrace {

struct RopeTables {
  float* inv_freq = nullptr;  // [head_dim / 2], device
  float* cos_sin = nullptr;   // [count, rows, head_dim], device
  int64_t count = 1, rows = 0, head_dim = 0;

  // Of positions [0, rows).
  static RopeTables carve(const RopeConfig& rope, int64_t head_dim, int64_t rows, BumpAllocator& allocator);
  static uint64_t row_bytes(const RopeConfig& rope, int64_t head_dim);  // of a position, in all tables
  // Enqueues the computation of what was carved for `rope`, and waits.
  void fill(const RopeConfig& rope, const RopeSizes& sizes, Stream& stream) const;
  int64_t q_offset() const { return (count - 1) * rows * head_dim; }  // elements from cos_sin to the table for q
};

}  // namespace headrace
