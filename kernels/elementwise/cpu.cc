#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/for_rows.h"
#include "kernels/elementwise/bodies.h"
#include "kernels/elementwise/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

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

void row_ids(const RowIdsParams& params, ThreadPool& pool) {
  for_rows(pool, params.rows, params.count, [&](int64_t row) {
    for (int64_t i = 0; i < params.count; ++i) {
      params.out[row * params.count + i] = static_cast<int32_t>(params.ids[row] * params.stride + params.first + i);
    }
  });
}

void rms_norm(const RmsNormParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  float factor = 1.0f;
  if (params.factor != nullptr) kernels.convert(params.type, DType::kF32, params.factor, &factor, 1);
  for_rows(pool, params.rows, params.cols, [&](int64_t row) {
    if (params.residual != nullptr) {
      const int64_t first = row * params.out_stride;
      return kernels.add_norm({params.x_type, params.type, params.x_type},
                              at(params.x, row * params.x_stride, params.x_type), params.weight,
                              at(params.residual, first, params.x_type), at(params.out, first, params.x_type),
                              params.cols, params.eps, factor);
    }
    const DType out_type = params.wide ? params.x_type : params.type;
    kernels.rms_norm({params.x_type, params.type, out_type}, at(params.x, row * params.x_stride, params.x_type),
                     params.weight, at(params.out, row * params.out_stride, out_type), params.cols, params.eps);
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
    const auto normed = [&](const std::byte* head, const void* weight, bool always = false) {
      if (weight == nullptr && !always) return head;
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
      kernels.convert(params.type, params.v_type,
                      normed(at(params.v, in + head * dim, params.type), nullptr, params.v_norm),
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
    kernels.silu_mul(params.activation, params.type, params.type,
                     at(params.gate_up, row * params.gate_stride, params.type),
                     at(params.up, row * params.up_stride, params.type), at(params.out, row * params.cols, params.type),
                     params.cols);
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

void scale(const ScaleParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  constexpr int64_t kRun = kInlineElements / 4;
  for_rows(pool, ceil_div(params.count, kRun), kRun, [&](int64_t run) {
    const int64_t first = run * kRun;
    kernels.scale(params.x_type, params.type, at(params.x, first, params.x_type), params.factor,
                  std::min(kRun, params.count - first));
  });
}

void softcap(const SoftcapParams& params, ThreadPool& pool) {
  const ElementwiseKernels& kernels = HEADRACE_PICK_ISA(elementwise_kernels);
  constexpr int64_t kRun = kInlineElements / 4;
  for_rows(pool, ceil_div(params.count, kRun), kRun * 4, [&](int64_t run) {
    kernels.softcap(params.x + run * kRun, params.cap, std::min(kRun, params.count - run * kRun));
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

}  // namespace headrace::kernels::cpu
