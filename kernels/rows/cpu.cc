#include <algorithm>
#include <cstring>

#include "kernels/rows/bodies.h"
#include "kernels/rows/cpu_isa.h"
#include "kernels/rows/plane.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

constexpr int64_t kRunRows = 64;

// K or V of a call.
struct Side {
  DType type, stored;
  const void* from;
  const void* to;
};

// `count` rows of KV head `head` from row `from` and to row `to` of planes of from_rows and to_rows rows.
struct Run {
  int64_t kv_heads, head_dim, head, from_rows, from, to_rows, to, count;

  PlaneRow at_from(const void* plane, DType type) const {
    return plane_row(plane, type, kv_heads, from_rows, head_dim, head, from);
  }
  PlaneRow at_to(const void* plane, DType type) const {
    return plane_row(plane, type, kv_heads, to_rows, head_dim, head, to);
  }
  RowRun rows(const PlaneRow& exact, DType type, const PlaneRow& stored, DType stored_type) const {
    return {exact.values, stored.values, stored.parameters, type, stored_type, head_dim, count};
  }
};

void copy(const Side& side, const Run& run) {
  if (side.from == side.to) return;
  std::memcpy(run.at_to(side.to, side.type).values, run.at_from(side.from, side.type).values,
              static_cast<size_t>(run.count) * row_value_bytes(side.type, run.head_dim));
}

void quantise(const Side& side, const Run& run, bool write_back) {
  if (!low_bit(side.stored)) return copy(side, run);
  const RowKernels& kernels = HEADRACE_PICK_ISA(row_kernels);
  const RowRun rows =
      run.rows(run.at_from(side.from, side.type), side.type, run.at_to(side.to, side.stored), side.stored);
  kernels.quantise(rows);
  if (write_back) kernels.dequantise(rows);
}

void dequantise(const Side& side, const Run& run) {
  if (!low_bit(side.stored)) return copy(side, run);
  HEADRACE_PICK_ISA(row_kernels)
      .dequantise(run.rows(run.at_to(side.to, side.type), side.type, run.at_from(side.from, side.stored), side.stored));
}

// Calls body(k or v, run) for rows [first_row, first_row + count) of every KV head, cut into runs.
template <typename Body>
void for_runs(const RowsParams& p, ThreadPool& pool, const Body& body) {
  const Side sides[] = {{p.k_type, p.stored_k_type, p.from.k, p.to.k}, {p.v_type, p.stored_v_type, p.from.v, p.to.v}};
  const int64_t runs = ceil_div(p.count, kRunRows);
  pool.parallel_for(2 * p.kv_heads * runs, [&](int64_t index, int) {
    const int64_t begin = p.first_row + index % runs * kRunRows;
    const int64_t count = std::min(kRunRows, p.first_row + p.count - begin);
    body(sides[index / runs / p.kv_heads], Run{p.kv_heads, p.head_dim, index / runs % p.kv_heads, p.from.stride_rows,
                                               begin, p.to.stride_rows, begin, count});
  });
}

}  // namespace

void quantise_rows(const RowsParams& p, ThreadPool& pool) {
  for_runs(p, pool, [&](const Side& side, const Run& run) { quantise(side, run, p.write_back); });
}

void dequantise_rows(const RowsParams& p, ThreadPool& pool) {
  for_runs(p, pool, [&](const Side& side, const Run& run) { dequantise(side, run); });
}

void quantise_ring(const QuantiseRingParams& p, ThreadPool& pool) {
  const auto layer_of = [&](const void* ring, int64_t layer, DType type) {
    return static_cast<const std::byte*>(ring) +
           static_cast<uint64_t>(layer * p.kv_heads * p.ring_rows) * row_value_bytes(type, p.head_dim);
  };
  pool.parallel_for(p.layers * p.kv_heads, [&](int64_t index, int) {
    const int64_t layer = index / p.kv_heads, head = index % p.kv_heads;
    const Side k{p.k_type, p.stored_k_type, layer_of(p.ring_k, layer, p.k_type), p.to_k[layer]};
    const Side v{p.v_type, p.stored_v_type, layer_of(p.ring_v, layer, p.v_type), p.to_v[layer]};
    const int64_t slot = p.first_position % p.ring_rows, to = p.first_position - p.to_position;
    const int64_t before = std::min(p.count, p.ring_rows - slot);  // rows before the ring's end; the rest wraps
    const Run first{p.kv_heads, p.head_dim, head, p.ring_rows, slot, p.to_rows, to, before};
    const Run rest{p.kv_heads, p.head_dim, head, p.ring_rows, 0, p.to_rows, to + before, p.count - before};
    for (const Side& side : {k, v}) {
      quantise(side, first, false);
      if (rest.count > 0) quantise(side, rest, false);
    }
  });
}

}  // namespace headrace::kernels::cpu
