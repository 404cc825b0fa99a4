#include "runtime/kv/recurrent_state.h"

#include <algorithm>

#include "runtime/base/bump_allocator.h"
#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

RecurrentStates carve_states(const RecurrentShape& s, BumpAllocator& allocator) {
  RecurrentStates states;
  states.states = allocator.take<float>(s.layers * s.layer.v_heads * s.layer.k_dim * s.layer.v_dim);
  states.convs = allocator.take_bytes(u(s.layers) * s.conv_bytes());
  return states;
}

// What passes need.
struct PassViews {
  DeltaRows rows{};
  RecurrentStates pending{};

  static PassViews carve(const RecurrentShape& s, BumpAllocator& allocator) {
    const int64_t rows = s.layers * s.pass_rows;
    PassViews views;
    views.rows.m = allocator.take_bytes(u(rows * s.layer.channels()) * dtype_bytes(s.type));
    views.rows.k = allocator.take<float>(rows * s.layer.k_width());
    views.rows.d = allocator.take<float>(rows * s.layer.v_width());
    views.rows.g = allocator.take<float>(rows * s.layer.v_heads);
    if (s.pending) views.pending = carve_states(s, allocator);
    return views;
  }
};

}  // namespace

uint64_t RecurrentShape::state_bytes() const { return u(layer.v_heads * layer.k_dim * layer.v_dim) * sizeof(float); }
uint64_t RecurrentShape::conv_bytes() const { return u(kDeltaConvRows * layer.channels()) * dtype_bytes(type); }
uint64_t RecurrentShape::pinned_bytes() const { return layers > 0 ? std::max(state_bytes(), conv_bytes()) : 0; }
uint64_t RecurrentShape::bytes() const {
  if (layers == 0) return 0;
  return whole_pages(carved_bytes([&](BumpAllocator& size) { carve_states(*this, size); }));
}
uint64_t RecurrentShape::pass_bytes() const {
  if (layers == 0) return 0;
  return whole_pages(carved_bytes([&](BumpAllocator& size) { PassViews::carve(*this, size); }));
}

RecurrentState::RecurrentState(Device& device, const RecurrentShape& shape)
    : device_(device),
      shape_(shape),
      memory_(device.allocate(shape.bytes(), "recurrent states")),
      zeros_(device.allocate_pinned(shape.pinned_bytes(), "an empty recurrent state")) {
  BumpAllocator allocator(memory_.data());
  committed_ = carve_states(shape, allocator);
  std::fill_n(zeros_.data(), shape.pinned_bytes(), std::byte{0});
}

void RecurrentState::clear(Stream& stream) {
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    stream.copy(state(layer), zeros_.data(), shape_.state_bytes(), Link::kHostToDevice, "recurrent state");
    stream.copy(conv(layer), zeros_.data(), shape_.conv_bytes(), Link::kHostToDevice, "recurrent state");
  }
}

void RecurrentState::load(int64_t layer, const std::byte* from, Stream& stream) {
  stream.copy(state(layer), from, shape_.state_bytes(), Link::kHostToDevice, {"recurrent state, layer", layer});
  stream.copy(conv(layer), from + shape_.state_bytes(), shape_.conv_bytes(), Link::kHostToDevice,
              {"recurrent state, layer", layer});
}

float* RecurrentState::state_of(const RecurrentStates& at, int64_t layer) const {
  return at.states + u(layer) * shape_.state_bytes() / sizeof(float);
}
void* RecurrentState::conv_of(const RecurrentStates& at, int64_t layer) const {
  return at.convs + u(layer) * shape_.conv_bytes();
}

void RecurrentState::allocate_passes() {
  pass_memory_ = device_.allocate(shape_.pass_bytes(), "rows of recurrent layers");
  BumpAllocator allocator(pass_memory_.data());
  const PassViews views = PassViews::carve(shape_, allocator);
  rows_ = views.rows;
  pending_ = views.pending;
}

DeltaRows RecurrentState::stored(int64_t layer) const {
  if (rows_.m == nullptr) return {};
  const DeltaShape& s = shape_.layer;
  const int64_t first = layer * shape_.pass_rows;
  return {.m = static_cast<std::byte*>(rows_.m) + u(first * s.channels()) * dtype_bytes(shape_.type),
          .k = rows_.k + first * s.k_width(),
          .d = rows_.d + first * s.v_width(),
          .g = rows_.g + first * s.v_heads};
}

void RecurrentState::begin_pending(Stream& stream) {
  CHECK(shape_.pending);
  const uint64_t layers = u(shape_.layers);
  stream.copy(pending_.states, committed_.states, layers * shape_.state_bytes(), Link::kWithinDevice, "pending state");
  stream.copy(pending_.convs, committed_.convs, layers * shape_.conv_bytes(), Link::kWithinDevice, "pending state");
}

void RecurrentState::replay(const RecurrentStates& states, const int32_t* source, int64_t count, Stream& stream) {
  CHECK(rows_.m != nullptr && states.states != nullptr);
  delta_commit({.shape = shape_.layer,
                .stored = rows_,
                .source = source,
                .state = states.states,
                .conv = states.convs,
                .type = shape_.type,
                .layers = shape_.layers,
                .pass_rows = shape_.pass_rows,
                .count = count},
               stream);
}

}  // namespace headrace
