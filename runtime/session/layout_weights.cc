// What the plan of a session knows of the weights.
#include <algorithm>

#include "runtime/model/substitutes.h"
#include "runtime/session/expert_slabs.h"
#include "runtime/session/layout.h"

namespace headrace {

// Their memory is free as far as the plan decides about it: it is taken anew if the plan has another place for them.
// What has none yet of the weights that stay takes some.
void SessionLayout::add_weights(PlanInput* input) const {
  LayerWeightsInput& weights = input->weights;
  weights.least_in_host = weights_.host_layers();
  weights.all_in_host = options_.weights == WeightsPlace::kHost;
  weights.experts = experts_input(weights_, device_.backend());
  weights.experts_alone = weights_.experts_alone();
  const Substitutes* const substitutes = substitute() ? weights_.possible_substitutes(*substitute()) : nullptr;
  uint64_t device = weights_.substitute_bytes(), host = 0, stay = whole_pages(weights_.all_bytes());
  for (int64_t i = 0; i < weights_.layer_count(); ++i) {
    const uint64_t bytes = weights_.layer_bytes(i), there = weights_.host_bytes(i);
    weights.bytes.push_back(bytes);
    if (substitutes != nullptr) weights.substitutes.push_back(substitutes->layer_bytes(i));
    stay -= bytes;
    device += bytes - there;
    host += there;
  }
  if (!weights_.allocated()) input->host_free -= std::min(input->host_free, weights_.host_bytes());
  if (options_.host_embedding) stay -= weights_.movable_bytes();
  const auto change = [&](uint64_t* free, uint64_t more) {
    *free = weights_.allocated() ? *free + more : *free - std::min(*free, stay);
  };
  if (device_.backend() == Backend::kCuda) {
    change(&input->vram_free, device);
    if (weights_.allocated()) input->host_free += host;
    return;
  }
  const MemoryBudget& vram = device_.vram();  // part of host memory
  uint64_t own = vram.limit_bytes() - vram.used_bytes();
  change(&own, device);
  change(&input->host_free, device + host);
  input->total_free = input->host_free;
  input->vram_free = std::min(own, input->host_free);
  if (input->vram_most != UINT64_MAX) input->vram_most = own;
}

}  // namespace headrace
