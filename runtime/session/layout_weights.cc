// What the plan of a session knows of the weights.
#include <algorithm>

#include "runtime/session/layout.h"

namespace headrace {

// Their memory is free as far as the plan decides about it: it is taken anew if the plan has another place for them.
// What has none yet of the weights that stay takes some.
void SessionLayout::add_weights(PlanInput* input) const {
  LayerWeightsInput& weights = input->weights;
  weights.least_in_host = weights_.host_layers();
  weights.all_in_host = options_.weights == WeightsPlace::kHost;
  uint64_t device = 0, host = 0, stay = whole_pages(weights_.all_bytes());
  const int64_t layers = weights_.layer_count();
  for (int64_t i = 0; i < layers; ++i) {
    weights.bytes.push_back(weights_.layer_bytes(i));
    stay -= weights.bytes.back();
    (i < layers - weights_.host_layers() ? device : host) += weights.bytes.back();
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
