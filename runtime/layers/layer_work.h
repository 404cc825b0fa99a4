// The buffers that layers compute in, divided from one buffer by the widths of the layers. Plain values and views.
#pragma once

#include <cstdint>
#include <span>

#include "cache/layout.h"
#include "kernels/attention/op.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/model/config.h"
#include "runtime/model/state_groups.h"

namespace headrace {

// The greatest widths of layers that use the same buffers in turn.
struct LayerWidths {
  int64_t hidden = 0;
  int64_t heads = 0, q = 0;  // of attention
  int64_t in = 0, out = 0;   // of what a mixer's first product makes, and of what its output product reads
  int64_t ffn = 0;
  bool output_norms = false;
  int64_t experts = 0, used = 0, expert_ffn = 0;  // 0: no layer has experts
  int64_t scores = 0;                             // of experts
  bool experts_beside = false;                    // a dense part
  bool shared_expert = false;                     // there is one; ffn is its width, too
  bool int8_experts = false;                      // they have products in 8 bits, with buffers of their own
  int64_t token = 0, token_layers = 0;            // of what a token adds to a layer; layers that are prepared at once

  static LayerWidths of(int64_t hidden, std::span<const LayerSpec> layers);
  static LayerWidths of(const ModelConfig& config) { return of(config.hidden, config.layers); }
};

// Of buffers for up to `rows` rows.
struct LayerWorkSize {
  Backend backend;
  DType type, hidden_type;  // of all activations but the residual stream, and of that
  int64_t rows;
};

// Room for what a layer with experts computes. A part is the rows that go through the experts together: all of a pass
// in 8 bits, where only what chooses experts is here.
constexpr int64_t kExpertPartRows = 512;
struct ExpertsWork {
  float* scores = nullptr;     // [rows, ExpertsSpec::scores()]
  int32_t* chosen = nullptr;   // [part, used]
  float* shares = nullptr;     // [part, used]
  int32_t* begin = nullptr;    // [all + 1]: count, and a shared one
  int32_t* places = nullptr;   // [part, used]
  int32_t* from = nullptr;     // [pairs]: part * used, and a part of a shared one
  int32_t* present = nullptr;  // [min(all, pairs)]
  void* x = nullptr;           // [pairs, hidden]: room of a grouped product, on the CPU
  void* gate_up = nullptr;     // [pairs, 2 * width]
  void* activated = nullptr;   // [pairs, width]
  float* y = nullptr;          // [pairs, hidden]

  static ExpertsWork carve(const LayerWidths& widths, const LayerWorkSize& size, BumpAllocator& allocator);
};

// Room for one layer's activations of up to `rows` rows.
struct LayerWork {
  void* normed = nullptr;     // [rows, hidden]
  void* qkv = nullptr;        // [rows, in]: q, k, v and gates, or what a recurrent layer has in their place
  void* attention = nullptr;  // [rows, out]
  void* gate_up = nullptr;    // [rows, 2 * ffn]
  void* activated = nullptr;  // [rows, ffn]
  // [rows, hidden] of the residual stream's type: what is normalised before it is added, or a shared expert's output.
  void* branch = nullptr;
  void* dense = nullptr;  // [rows, hidden] of the residual stream's type, where experts are beside a dense part
  // Where a token adds to layers: what it adds to each, [rows, token_layers, token], and room of the same size; and
  // their rows in the table, [rows, token_layers].
  void *token_inputs = nullptr, *token_part = nullptr;
  int32_t* token_rows = nullptr;
  ExpertsWork experts;

  static LayerWork carve(const LayerWidths& widths, const LayerWorkSize& size, BumpAllocator& allocator);
};

// States of attention of `rows` queries.
AttentionState carve_states(const LayerWidths& widths, int64_t rows, BumpAllocator& allocator);

// Of a group of layers with attention, whose rows are alike. `exact`: the weights' type, in which low-bit rows are held
// exactly. No layers: the group has none.
RowShape row_shape(std::span<const LayerSpec> layers, DType k_type, DType v_type, DType exact,
                   StateGroup group = StateGroup::kRows);
inline RowShape row_shape(const ModelConfig& config, DType k_type, DType v_type, DType exact,
                          StateGroup group = StateGroup::kRows) {
  return row_shape(config.layers, k_type, v_type, exact, group);
}

}  // namespace headrace
