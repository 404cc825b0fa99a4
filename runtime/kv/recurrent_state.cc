#include "runtime/kv/recurrent_state.h"

#include <algorithm>

#include "runtime/base/bump_allocator.h"
#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

// Everything that a RecurrentState has in device memory.
struct Views {
  float* states;
  std::byte* convs;
  DeltaRows rows;

  static Views carve(const RecurrentShape& s, BumpAllocator& allocator) {
    const int64_t rows = s.layers * s.pass_rows;
    Views views{};
    views.states = allocator.take<float>(s.layers * s.layer.v_heads * s.layer.k_dim * s.layer.v_dim);
    views.convs = allocator.take_bytes(u(s.layers) * s.conv_bytes());
    views.rows.m = allocator.take_bytes(u(rows * s.layer.channels()) * dtype_bytes(s.type));
    views.rows.k = allocator.take<float>(rows * s.layer.k_width());
    views.rows.d = allocator.take<float>(rows * s.layer.v_width());
    views.rows.g = allocator.take<float>(rows * s.layer.v_heads);
    return views;
  }
};

}  // namespace

uint64_t RecurrentShape::state_bytes() const { return u(layer.v_heads * layer.k_dim * layer.v_dim) * sizeof(float); }
uint64_t RecurrentShape::conv_bytes() const { return u(kDeltaConvRows * layer.channels()) * dtype_bytes(type); }
uint64_t RecurrentShape::pinned_bytes() const { return layers > 0 ? std::max(state_bytes(), conv_bytes()) : 0; }
uint64_t RecurrentShape::bytes() const {
  if (layers == 0) return 0;
  return whole_pages(carved_bytes([&](BumpAllocator& allocator) { Views::carve(*this, allocator); }));
}

RecurrentState::RecurrentState(Device& device, const RecurrentShape& shape)
    : shape_(shape),
      memory_(device.allocate(shape.bytes(), "recurrent states")),
      zeros_(device.allocate_pinned(shape.pinned_bytes(), "an empty recurrent state")) {
  BumpAllocator allocator(memory_.data());
  const Views views = Views::carve(shape, allocator);
  states_ = views.states;
  convs_ = views.convs;
  rows_ = views.rows;
  std::fill_n(zeros_.data(), shape.pinned_bytes(), std::byte{0});
}

void RecurrentState::clear(Stream& stream) {
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    stream.copy(state(layer), zeros_.data(), shape_.state_bytes(), Link::kHostToDevice, "recurrent state");
    stream.copy(conv(layer), zeros_.data(), shape_.conv_bytes(), Link::kHostToDevice, "recurrent state");
  }
}

float* RecurrentState::state(int64_t layer) const { return states_ + u(layer) * shape_.state_bytes() / sizeof(float); }
void* RecurrentState::conv(int64_t layer) const { return convs_ + u(layer) * shape_.conv_bytes(); }

DeltaRows RecurrentState::stored(int64_t layer) const {
  const DeltaShape& s = shape_.layer;
  const int64_t first = layer * shape_.pass_rows;
  return {.m = static_cast<std::byte*>(rows_.m) + u(first * s.channels()) * dtype_bytes(shape_.type),
          .k = rows_.k + first * s.k_width(),
          .d = rows_.d + first * s.v_width(),
          .g = rows_.g + first * s.v_heads};
}

void RecurrentState::commit(const int32_t* source, int64_t count, Stream& stream) {
  delta_commit({.shape = shape_.layer,
                .stored = rows_,
                .source = source,
                .state = states_,
                .conv = convs_,
                .type = shape_.type,
                .layers = shape_.layers,
                .pass_rows = shape_.pass_rows,
                .count = count},
               stream);
}

}  // namespace headrace
