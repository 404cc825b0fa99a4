#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/for_rows.h"
#include "kernels/elementwise/cpu_isa.h"
#include "kernels/rows/bodies.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

void commit_rows(const CommitParams& params, ThreadPool& pool) {
  const int64_t dim = params.head_dim;
  for_rows(pool, params.layers, params.count * params.kv_heads * dim * 2, [&](int64_t layer) {
    for (int64_t j = 0; j < params.count; ++j) {
      const int64_t source = params.source[j], position = params.first_position + j;
      CHECK(source >= 0 && source < params.pass_rows, "source=", source, " pass_rows=", params.pass_rows, " j=", j);
      for (int64_t head = 0; head < params.kv_heads; ++head) {
        const int64_t from = ((layer * params.pass_rows + source) * params.kv_heads + head) * dim;
        const int64_t ring = ((layer * params.kv_heads + head) * params.ring_rows + position % params.ring_rows) * dim;
        const int64_t active = (head * params.active_rows + position - params.active_position) * dim;
        const auto copy_row = [&](const void* pass, void* ring_base, void* const* active_bases, DType type) {
          const size_t bytes = static_cast<size_t>(dim) * dtype_bytes(type);
          std::memcpy(at(ring_base, ring, type), at(pass, from, type), bytes);
          if (active_bases != nullptr) std::memcpy(at(active_bases[layer], active, type), at(pass, from, type), bytes);
        };
        copy_row(params.pass_k, params.ring_k, params.active_k, params.k_type);
        copy_row(params.pass_v, params.ring_v, params.active_v, params.v_type);
      }
    }
  });
}

void fill_ring(const FillRingParams& params, ThreadPool& pool) {
  const int64_t slot = params.first_position % params.ring_rows;
  const int64_t before = std::min(params.count, params.ring_rows - slot);  // rows before the ring's end; the rest wraps
  const auto move = [&](const void* rows, void* ring, int64_t head, DType type) {
    const int64_t from = head * params.stride_rows, to = head * params.ring_rows, dim = params.head_dim;
    const size_t row_bytes = static_cast<size_t>(dim) * dtype_bytes(type);
    std::memcpy(at(ring, (to + slot) * dim, type), at(rows, from * dim, type), static_cast<size_t>(before) * row_bytes);
    std::memcpy(at(ring, to * dim, type), at(rows, (from + before) * dim, type),
                static_cast<size_t>(params.count - before) * row_bytes);
  };
  for_rows(pool, params.kv_heads, params.count * params.head_dim * 2, [&](int64_t head) {
    move(params.k, params.ring_k, head, params.k_type);
    if (params.v != nullptr) move(params.v, params.ring_v, head, params.v_type);
  });
}

void place_rows(const PlaceRowsParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  const int64_t dim = params.head_dim, half = dim / 2, rows = params.sinks + params.keep * params.chunk_rows;
  for_rows(pool, params.layers * rows, params.kv_heads * dim * 4, [&](int64_t index) {
    const int64_t layer = index / rows, i = index % rows, in_chunks = i - params.sinks;
    const bool sink = in_chunks < 0;
    const int64_t row =
        sink ? i : params.chosen[in_chunks / params.chunk_rows] * params.chunk_rows + in_chunks % params.chunk_rows;
    const int64_t distance = params.end - rows + i - row;
    CHECK(row >= 0 && distance >= 0, "row=", row, " distance=", distance);
    std::array<float, static_cast<size_t>(kMaxPlacedHeadDim)> turn;
    for (int64_t j = 0; j < half; ++j) {
      const float c = params.cos_sin[distance * dim + j], s = params.cos_sin[distance * dim + half + j];
      const float factor = 1.0f / std::sqrt(c * c + s * s);
      turn[static_cast<size_t>(j)] = c * factor;
      turn[static_cast<size_t>(half + j)] = s * factor;
    }
    const int64_t held = sink ? params.sinks : params.ring_rows, slot = sink ? row : row % params.ring_rows;
    for (int64_t head = 0; head < params.kv_heads; ++head) {
      const int64_t plane = layer * params.kv_heads + head;
      const int64_t from = (plane * held + slot) * dim, to = (plane * params.out_rows + i) * dim;
      kernels.rotate(params.k_type, params.k_type, at(sink ? params.sink_k : params.ring_k, from, params.k_type),
                     turn.data(), at(params.k_out, to, params.k_type), dim);
      std::memcpy(at(params.v_out, to, params.v_type), at(sink ? params.sink_v : params.ring_v, from, params.v_type),
                  static_cast<size_t>(dim) * dtype_bytes(params.v_type));
    }
  });
}

void make_keys(const MakeKeysParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  const int64_t dim = params.head_dim, first = params.first != nullptr ? *params.first : 0;
  std::array<float, static_cast<size_t>(kMaxRowHeadDim)> weight;
  kernels.convert(params.weight_type, DType::kF32, params.weight, weight.data(), dim);
  for (int64_t i = 0; i < params.count; ++i) {
    const MakeKeysParams::Run& run = params.runs[i];
    for_rows(pool, run.rows, params.kv_heads * dim * 2, [&](int64_t row) {
      const int64_t position = params.positions != nullptr ? params.positions[row] : run.position + row;
      CHECK(position >= 0 && position < params.table_rows, "position=", position, " table_rows=", params.table_rows);
      std::array<float, static_cast<size_t>(kMaxRowHeadDim)> x;
      for (int64_t head = 0; head < params.kv_heads; ++head) {
        const int64_t place = (first + row) * run.row_stride + head * run.head_stride;
        kernels.convert(params.type, DType::kF32, at(run.v, place, params.type), x.data(), dim);
        for (int64_t j = 0; j < dim; ++j) x[static_cast<size_t>(j)] *= weight[static_cast<size_t>(j)];
        kernels.rotate(DType::kF32, params.type, x.data(), params.cos_sin + position * dim,
                       at(run.k, place, params.type), dim);
      }
    });
  }
}

}  // namespace headrace::kernels::cpu
