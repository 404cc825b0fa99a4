#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/elementwise/bodies.h"
#include "kernels/elementwise/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

// With fewer elements a loop costs less than waking the pool (a few microseconds).
constexpr int64_t kInlineElements = 16 * 1024;

// Calls body(row) for every row: in the calling thread for little work, else in runs of rows.
template <typename Body>
void for_rows(ThreadPool& pool, int64_t rows, int64_t elements_per_row, const Body& body) {
  if (rows * elements_per_row <= kInlineElements || pool.threads() == 1) {
    for (int64_t row = 0; row < rows; ++row) body(row);
    return;
  }
  const int64_t run = std::max<int64_t>(1, kInlineElements / 4 / std::max<int64_t>(1, elements_per_row));
  pool.parallel_for(ceil_div(rows, run), [&](int64_t index, int) {
    const int64_t end = std::min(rows, (index + 1) * run);
    for (int64_t row = index * run; row < end; ++row) body(row);
  });
}

const std::byte* at(const void* base, int64_t element, DType type) {
  return static_cast<const std::byte*>(base) + element * static_cast<int64_t>(dtype_bytes(type));
}
std::byte* at(void* base, int64_t element, DType type) {
  return static_cast<std::byte*>(base) + element * static_cast<int64_t>(dtype_bytes(type));
}

}  // namespace

void embedding(const EmbeddingParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  const size_t row_bytes = static_cast<size_t>(params.hidden) * dtype_bytes(params.type);
  for_rows(pool, params.rows, params.hidden, [&](int64_t row) {
    const int64_t id = params.ids[row];
    CHECK(id >= 0 && id < params.vocab, "id=", id, " vocab=", params.vocab, " row=", row);
    const std::byte* const from = at(params.table, id * params.hidden, params.type);
    std::byte* const to = at(params.out, row * params.hidden, params.out_type);
    if (params.out_type == params.type) {
      std::memcpy(to, from, row_bytes);
    } else {
      kernels.convert(params.type, params.out_type, from, to, params.hidden);
    }
  });
}

void rms_norm(const RmsNormParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  for_rows(pool, params.rows, params.cols, [&](int64_t row) {
    kernels.rms_norm({params.x_type, params.type, params.type}, at(params.x, row * params.x_stride, params.x_type),
                     params.weight, at(params.out, row * params.out_stride, params.type), params.cols, params.eps);
  });
}

void rope(const RopeParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  const int64_t dim = params.head_dim, out_first = params.out_first != nullptr ? *params.out_first : 0;
  CHECK(out_first >= 0, "out_first=", out_first);
  for_rows(pool, params.rows, (params.heads + 2 * params.kv_heads) * dim, [&](int64_t row) {
    const int64_t position = params.positions[row];
    CHECK(position >= 0 && position < params.table_rows, "position=", position, " table_rows=", params.table_rows);
    const float* cos_sin = params.cos_sin + position * dim;
    const int64_t in = row * params.qkv_stride;
    alignas(64) std::byte room[kMaxNormedHeadDim * sizeof(float)];
    const auto normed = [&](const std::byte* head, const void* weight) {
      if (weight == nullptr) return head;
      kernels.rms_norm({params.type, params.type, params.type}, head, weight, room, dim, params.eps);
      return static_cast<const std::byte*>(room);
    };
    for (int64_t head = 0; head < params.heads; ++head) {
      std::byte* q = at(params.q, in + head * dim, params.type);
      kernels.rotate(params.type, params.type, normed(q, params.q_norm), cos_sin + params.q_table, q, dim);
    }
    for (int64_t head = 0; head < params.kv_heads; ++head) {
      const int64_t out = (out_first + row) * params.out_row_stride + head * params.out_head_stride;
      kernels.rotate(params.type, params.k_type, normed(at(params.k, in + head * dim, params.type), params.k_norm),
                     cos_sin, at(params.k_out, out, params.k_type), dim);
      kernels.convert(params.type, params.v_type, at(params.v, in + head * dim, params.type),
                      at(params.v_out, out, params.v_type), dim);
    }
  });
}

void rope_table(const RopeTableParams& params, ThreadPool& pool) {
  const int64_t half = params.head_dim / 2;
  for_rows(pool, params.rows, params.head_dim * 16, [&](int64_t row) {  // a sine costs as much as 16 moves
    float* cosines = params.cos_sin + row * params.head_dim;
    const int64_t stretches = 1 + row / params.step;  // begun at this row
    const double grown = 1.0 + params.beta * std::log(static_cast<double>(stretches));
    const float rotated_scale = params.scale * static_cast<float>(grown);
    for (int64_t i = 0; i < half; ++i) {
      const float scale = params.inv_freq[i] == 0 ? 1.0f : rotated_scale;
      const float angle = static_cast<float>(row) * params.inv_freq[i];
      cosines[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * scale;
      cosines[half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * scale;
    }
  });
}

void silu_mul(const SiluMulParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  for_rows(pool, params.rows, params.cols * 4, [&](int64_t row) {  // an exponential costs as much as a few moves
    const std::byte* gate = at(params.gate_up, row * 2 * params.cols, params.type);
    kernels.silu_mul(params.type, params.type, gate, at(static_cast<const void*>(gate), params.cols, params.type),
                     at(params.out, row * params.cols, params.type), params.cols);
  });
}

void gate_rows(const GateRowsParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  const int64_t width = params.heads * params.head_dim;
  for_rows(pool, params.rows, width * 4, [&](int64_t row) {
    for (int64_t head = 0; head < params.heads; ++head) {
      kernels.gate(params.type, at(params.gate, row * params.gate_stride + head * params.gate_head_stride, params.type),
                   at(params.y, row * width + head * params.head_dim, params.type), params.head_dim);
    }
  });
}

void convert(const ConvertParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  constexpr int64_t kRun = kInlineElements / 4;
  for_rows(pool, ceil_div(params.count, kRun), kRun, [&](int64_t run) {
    const int64_t first = run * kRun;
    kernels.convert(params.in_type, params.out_type, at(params.in, first, params.in_type),
                    at(params.out, first, params.out_type), std::min(kRun, params.count - first));
  });
}

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
    move(params.v, params.ring_v, head, params.v_type);
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

}  // namespace headrace::kernels::cpu
