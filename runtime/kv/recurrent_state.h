// The states of the layers that have no rows (Gated DeltaNet): for each, a state of constant size and the last inputs
// of its convolution, at the last committed token, and what the last pass keeps of its rows until they are committed.
// Owns device memory. Thread: one at a time; all work is enqueued on the stream.
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

  uint64_t state_bytes() const;  // of a layer: the recurrence's, in f32
  uint64_t conv_bytes() const;   // of a layer
  uint64_t bytes() const;        // device memory
  uint64_t pinned_bytes() const;
};

class RecurrentState {
 public:
  RecurrentState(Device& device, const RecurrentShape& shape);

  // The states before the first token.
  void clear(Stream& stream);
  float* state(int64_t layer) const;  // [v_heads, k_dim, v_dim]
  void* conv(int64_t layer) const;    // [3, channels]
  DeltaRows stored(int64_t layer) const;
  int64_t pass_rows() const { return shape_.pass_rows; }
  // Moves all layers' states behind pass rows source[0] to source[count - 1], in device memory.
  void commit(const int32_t* source, int64_t count, Stream& stream);

 private:
  const RecurrentShape shape_;
  DeviceBuffer memory_;
  PinnedBuffer zeros_;  // as many as the larger of a layer's two states has
  float* states_ = nullptr;
  std::byte* convs_ = nullptr;
  DeltaRows rows_{};  // [layers, pass_rows, ...]
};

}  // namespace headrace
