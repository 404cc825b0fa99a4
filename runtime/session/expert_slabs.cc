#include "runtime/session/expert_slabs.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/bump_allocator.h"

namespace headrace {
namespace {

const std::byte* bytes_at(const void* data) { return static_cast<const std::byte*>(data); }

uint64_t part_bytes(const Weight& matrix, int part, Backend backend) {
  return stored_weight_bytes(backend, matrix.parts[part].type, matrix.parts[part].rows, matrix.cols);
}

// Of a shared expert's matrix, as its parts are placed one behind the other.
uint64_t shared_bytes(const Weight& matrix, Backend backend) {
  uint64_t bytes = 0;
  for (int i = 0; i < matrix.count; ++i) {
    bytes += round_up(part_bytes(matrix, i, backend), kSlabAlign);
  }
  return bytes;
}

// Copies a shared expert's matrix to `to`, part after part as they are placed, and points it there.
void move_shared(Weight* matrix, std::byte* to, Stream& compute) {
  for (int i = 0; i < matrix->count; ++i) {
    WeightPart& part = matrix->parts[i];
    const uint64_t bytes = part_bytes(*matrix, i, compute.backend());
    compute.copy(to, part.data, bytes, Link::kHostToDevice, "a shared expert");
    part.data = to;
    to += round_up(bytes, kSlabAlign);
  }
}

}  // namespace

ExpertLayer expert_layer(const Weights& weights, int64_t layer, Backend backend) {
  const LayerWeights& w = weights.layer(layer);
  if (!w.spec.ffn.experts) return {};
  const ExpertWeights& e = w.experts;
  ExpertLayer of{.part_bytes = weights.expert_part_bytes(layer),
                 .slot_bytes = e.gate_up_stride + e.down_stride + e.gate_up_bias_stride + e.down_bias_stride};
  if (w.spec.ffn.experts->shared) of.fixed_bytes = shared_bytes(w.gate_up, backend) + shared_bytes(w.down, backend);
  return of;
}

ExpertsInput experts_input(const Weights& weights, Backend backend) {
  ExpertsInput input;
  for (int64_t i = 0; i < weights.layer_count(); ++i) {
    input.layers.push_back(expert_layer(weights, i, backend));
    const std::optional<ExpertsSpec>& experts = weights.layer(i).spec.ffn.experts;
    if (!experts) continue;
    input.count = std::max(input.count, experts->count);
    input.used = std::max(input.used, experts->used);
  }
  if (input.count == 0) input.layers.clear();
  return input;
}

ExpertSlabs::ExpertSlabs(const Weights& weights, const MemoryPlan& plan, Device& device, Stream& compute)
    : weights_(weights),
      slots_(plan.expert_slots),
      first_(weights.layer_count() - weights.host_layers()),
      compute_(compute),
      memory_(device.allocate(plan.expert_slab_bytes, "slabs of experts")),
      host_(device.allocate_pinned(kExpertPinnedBytes, "the state of a slab of experts")) {
  CHECK(weights.experts_alone() && weights.loaded() && weights.host_layers() == plan.host_weights_layers);
  const int64_t count = experts_input(weights, device.backend()).count;
  CHECK(expert_state_bytes(slots_) <= host_.bytes() &&
            static_cast<uint64_t>(weights.host_layers()) * 2 * sizeof(uint64_t) <= host_.bytes(),
        "slots=", slots_);
  BumpAllocator allocator(memory_.data());
  lists_.slots = slots_;
  lists_.matrices = allocator.take<int32_t>(count + 1);
  lists_.rounds = allocator.take<int32_t>(slab_rounds(slots_, count + 1) * (slots_ + 1));
  lists_.missing = allocator.take<int32_t>(slab_rounds(slots_, count + 1) * (slots_ + 1));
  std::fill_n(host_.data(), host_.bytes(), std::byte{0});
  std::fill_n(reinterpret_cast<int32_t*>(host_.data()), slots_, -1);
  slabs_.resize(static_cast<size_t>(weights.host_layers()));
  for (int64_t layer = first_; layer < weights.layer_count(); ++layer) {
    layers_.push_back(weights.layer(layer));
    if (layers_.back().spec.ffn.experts) add_layer(layer, allocator);
  }
  CHECK(allocator.used_bytes() <= plan.expert_slab_bytes, "slabs take ", allocator.used_bytes(), " bytes of ",
        plan.expert_slab_bytes);
  compute_.synchronize();  // host_ is read no more
}

// What a step reads is in the slab: slot after slot of each of the parts, the shared expert's matrix behind the last.
void ExpertSlabs::add_layer(int64_t layer, BumpAllocator& allocator) {
  LayerWeights& w = layers_.back();
  ExpertWeights& e = w.experts;
  ExpertSlab& slab = slabs_[static_cast<size_t>(layer - first_)];
  slab = lists_;
  slab.expert_in = allocator.take<int32_t>(slots_);
  slab.used_at = allocator.take<uint32_t>(slots_);
  slab.calls = allocator.take<uint32_t>(1);
  slab.counts = allocator.take<uint64_t>(2);
  compute_.copy(slab.expert_in, host_.data(), expert_state_bytes(slots_), Link::kHostToDevice, "the state of a slab");
  const auto add = [&](const void* host, uint64_t stride, const Weight* shared) {
    std::byte* const to = allocator.take_bytes(static_cast<uint64_t>(slots_) * stride);
    if (shared != nullptr) allocator.take_bytes(shared_bytes(*shared, compute_.backend()));
    slab.parts[slab.part_count++] = {.host = host, .device = to, .stride = stride};
    return to;
  };
  const bool shared = w.spec.ffn.experts->shared;
  const auto add_matrix = [&](Weight* matrix, uint64_t stride, Weight* of_shared) {
    const std::byte* const host = bytes_at(matrix->parts[0].data);
    std::byte* const to = add(host, stride, shared ? of_shared : nullptr);
    for (int i = 0; i < matrix->count; ++i) {
      matrix->parts[i].data = to + (bytes_at(matrix->parts[i].data) - host);
    }
    if (shared) move_shared(of_shared, to + static_cast<uint64_t>(slots_) * stride, compute_);
  };
  add_matrix(&e.gate_up, e.gate_up_stride, &w.gate_up);
  add_matrix(&e.down, e.down_stride, &w.down);
  if (e.gate_up_bias != nullptr) e.gate_up_bias = add(e.gate_up_bias, e.gate_up_bias_stride, nullptr);
  if (e.down_bias != nullptr) e.down_bias = add(e.down_bias, e.down_bias_stride, nullptr);
  e.slab = &slab;
}

ExpertUse ExpertSlabs::use() {
  auto* const counts = reinterpret_cast<uint64_t*>(host_.data());
  for (size_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].counts == nullptr) continue;
    compute_.copy(counts + 2 * i, slabs_[i].counts, 2 * sizeof(uint64_t), Link::kDeviceToHost, "use of a slab");
  }
  compute_.synchronize();
  ExpertUse use;
  for (size_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].counts == nullptr) continue;
    const uint64_t fetched = counts[2 * i + 1];
    use.used += counts[2 * i] + fetched;
    use.fetched += fetched;
    use.fetched_bytes +=
        fetched * expert_layer(weights_, first_ + static_cast<int64_t>(i), compute_.backend()).slot_bytes;
  }
  return use;
}

}  // namespace headrace
