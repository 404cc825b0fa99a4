#include "runtime/layers/rope_tables.h"

#include "kernels/elementwise/op.h"

namespace headrace {
namespace {

int64_t table_count(const RopeConfig& rope) { return rope.query_beta != 0 ? 2 : 1; }

}  // namespace

RopeTables RopeTables::carve(const RopeConfig& rope, int64_t head_dim, int64_t rows, BumpAllocator& allocator) {
  RopeTables tables{.count = table_count(rope), .rows = rows, .head_dim = head_dim};
  tables.inv_freq = allocator.take<float>(head_dim / 2);
  tables.cos_sin = allocator.take<float>(tables.count * rows * head_dim);
  return tables;
}

uint64_t RopeTables::row_bytes(const RopeConfig& rope, int64_t head_dim) {
  return static_cast<uint64_t>(table_count(rope) * head_dim) * sizeof(float);
}

void RopeTables::fill(const RopeConfig& rope, const RopeSizes& sizes, Stream& stream) const {
  const RopeTable table = make_rope_table(rope, sizes);
  CHECK(count == table_count(rope) && table.inv_freq.size() == static_cast<size_t>(head_dim / 2));
  stream.copy(inv_freq, table.inv_freq.data(), table.inv_freq.size() * sizeof(float), Link::kHostToDevice, "rope");
  RopeTableParams params = {
      .inv_freq = inv_freq, .cos_sin = cos_sin, .scale = table.scale, .rows = rows, .head_dim = head_dim};
  rope_table(params, stream);
  if (count > 1) {
    params.cos_sin += q_offset();
    params.beta = rope.query_beta;
    params.step = rope.query_step;
    rope_table(params, stream);
  }
  stream.synchronize();  // the table's host side goes out of scope
}

}  // namespace headrace
