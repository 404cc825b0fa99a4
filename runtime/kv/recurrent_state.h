// The states of the layers that have no rows (Gated DeltaNet): for each, a state of constant size and the last inputs
// of its convolution, at the last committed token, and what the last pass keeps of its rows until they are committed.
// With partial steps also the same states behind tokens that are pending (docs/design.md, section 6, rule 5). Owns
// device memory. Thread: one at a time; all work is enqueued on the stream.
#pragma once

#include <cstdint>

#include "kernels/recurrence/op.h"
#include "offload/device/device.h"

namespace headrace {

struct RecurrentShape {
  DeltaShape layer{};
  int64_t layers = 0;        // 0: the model has none
  int64_t pass_rows = 0;     // of the largest pass
  DType type = DType::kF32;  // of the convolution's inputs
  bool pending = false;      // tokens may be pending

  uint64_t state_bytes() const;  // of a layer: the recurrence's, in f32
  uint64_t conv_bytes() const;   // of a layer
  uint64_t bytes() const;        // device memory of the whole run
  uint64_t pass_bytes() const;   // more device memory, which only passes need
  uint64_t pinned_bytes() const;
};

// Of all layers, at one token.
struct RecurrentStates {
  float* states = nullptr;     // [layers, v_heads, k_dim, v_dim]
  std::byte* convs = nullptr;  // [layers, 3, channels]
};

class RecurrentState {
 public:
  RecurrentState(Device& device, const RecurrentShape& shape);

  // The states before the first token.
  void clear(Stream& stream);
  float* state(int64_t layer) const { return state_of(committed_, layer); }  // [v_heads, k_dim, v_dim]
  void* conv(int64_t layer) const { return conv_of(committed_, layer); }     // [3, channels]
  // A layer's state and, behind it, its convolution's inputs, from pinned host memory.
  void load(int64_t layer, const std::byte* from, Stream& stream);

  // ---- passes: the views and functions below ----
  void allocate_passes();                 // call once prefill's memory is free
  DeltaRows stored(int64_t layer) const;  // null before allocate_passes()
  int64_t pass_rows() const { return shape_.pass_rows; }
  // Moves all layers' states behind pass rows source[0] to source[count - 1], in device memory.
  void commit(const int32_t* source, int64_t count, Stream& stream) { replay(committed_, source, count, stream); }
  // The states behind pending tokens. begin_pending() makes them the committed ones, of which they are a copy, and
  // commit_pending() moves them as commit() does. REQUIRES: shape.pending.
  void begin_pending(Stream& stream);
  void commit_pending(const int32_t* source, int64_t count, Stream& stream) { replay(pending_, source, count, stream); }
  float* pending_state(int64_t layer) const { return state_of(pending_, layer); }
  void* pending_conv(int64_t layer) const { return conv_of(pending_, layer); }

 private:
  float* state_of(const RecurrentStates& at, int64_t layer) const;
  void* conv_of(const RecurrentStates& at, int64_t layer) const;
  void replay(const RecurrentStates& states, const int32_t* source, int64_t count, Stream& stream);

  Device& device_;
  const RecurrentShape shape_;
  DeviceBuffer memory_, pass_memory_;
  PinnedBuffer zeros_;  // as many as the larger of a layer's two states has
  RecurrentStates committed_, pending_;
  DeltaRows rows_{};  // [layers, pass_rows, ...]
};

}  // namespace headrace
