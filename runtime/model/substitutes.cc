#include "runtime/model/substitutes.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr WeightPolicy kPolicies[] = {WeightPolicy::kQ8_0, WeightPolicy::kQ6K, WeightPolicy::kQ5K, WeightPolicy::kQ4K};

WeightStoreOptions substitute_options(WeightType type, DType dtype) {
  WeightStoreOptions options{.dtype = dtype, .policy = WeightPolicy::kKeep, .substitutes = true};
  for (const WeightPolicy policy : kPolicies) {
    if (quantised_type(policy) == type) options.policy = policy;
  }
  CHECK(options.policy != WeightPolicy::kKeep, weight_type_info(type).name);
  return options;
}

}  // namespace

Substitutes::Substitutes(const Checkpoint& checkpoint, WeightType type, DType dtype, Backend backend, int64_t first)
    : type_(type), first_(first), store_(substitute_options(type, dtype), backend) {
  const int64_t layers = checkpoint.config().layer_count();
  layers_.resize(static_cast<size_t>(layers - first));
  for (int64_t i = first; i < layers; ++i) {
    place_layer(checkpoint, i, &layers_[place(i)], &places_);
    CHECK(store_.end_part() == place(i));
  }
}

void Substitutes::allocate(Device& device) { places_.allocate(device, "substitutes of weights"); }

bool Substitutes::load(const Checkpoint& checkpoint, Device& device, Progress* progress,
                       const std::atomic<bool>* interrupt) {
  return store_.load(checkpoint, device, "quantising substitutes", progress, interrupt);
}

std::vector<std::unique_ptr<Substitutes>> possible_substitutes_of(const Checkpoint& checkpoint,
                                                                  const WeightStore& exact, Backend backend) {
  const std::vector<LayerSpec>& layers = checkpoint.config().layers;
  const bool experts = std::any_of(layers.begin(), layers.end(), [](const auto& l) { return l.ffn.experts; });
  std::vector<std::unique_ptr<Substitutes>> all;
  if (experts || (backend == Backend::kCuda && exact.dtype() != DType::kBF16)) return all;
  for (const WeightPolicy policy : kPolicies) {
    const WeightType type = quantised_type(policy).value();
    auto made = std::make_unique<Substitutes>(checkpoint, type, exact.dtype(), backend, 0);
    bool smaller = all.empty() || made->bytes() < all.back()->bytes();
    for (size_t i = 0; i < layers.size(); ++i) {  // the embeddings are part 0
      smaller = smaller && made->layer_bytes(static_cast<int64_t>(i)) < exact.part_bytes(i + 1);
    }
    if (smaller) all.push_back(std::move(made));
  }
  return all;
}

}  // namespace headrace
