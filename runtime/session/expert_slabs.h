// The slabs of a run whose experts are in host memory (kernels/experts/slab.h): one for each such layer, all of as many
// slots. They begin empty, and with the shared experts' matrices, which stay there. Owns their memory. The addresses
// are fixed, so steps are replayed. Thread: that of the passes.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/memory_plan.h"
#include "kernels/experts/slab.h"
#include "offload/device/device.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/model/weights.h"

namespace headrace {

// What the plan has to know of a layer with experts.
ExpertLayer expert_layer(const Weights& weights, int64_t layer, Backend backend);
ExpertsInput experts_input(const Weights& weights, Backend backend);

class ExpertSlabs {
 public:
  // Takes plan.expert_slab_bytes. `weights` must be loaded, with their experts in host memory, and outlive this.
  ExpertSlabs(const Weights& weights, const MemoryPlan& plan, Device& device, Stream& compute);
  ExpertSlabs(const ExpertSlabs&) = delete;
  ExpertSlabs& operator=(const ExpertSlabs&) = delete;

  const LayerWeights& layer(int64_t layer) const {
    return layer < first_ ? weights_.layer(layer) : layers_[static_cast<size_t>(layer - first_)];
  }
  ExpertUse use();  // waits for the stream

 private:
  void add_layer(int64_t layer, BumpAllocator& allocator);

  const Weights& weights_;
  const int64_t slots_, first_;
  Stream& compute_;
  DeviceBuffer memory_;
  PinnedBuffer host_;
  ExpertSlab lists_;  // what the slabs share
  std::vector<ExpertSlab> slabs_;
  std::vector<LayerWeights> layers_;  // from first_ on
};

}  // namespace headrace
