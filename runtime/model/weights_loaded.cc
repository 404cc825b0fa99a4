// What a model's weights have in memory: the exact ones, and substitutes of layers in host memory.
#include <algorithm>

#include "runtime/model/substitutes.h"
#include "runtime/model/weights.h"

namespace headrace {

Weights::Body::Body(const WeightStoreOptions& options, Backend backend) : store(options, backend) {}
Weights::Body::~Body() = default;
Weights::~Weights() = default;
Weights::Weights(Weights&&) noexcept = default;
Weights& Weights::operator=(Weights&&) noexcept = default;

bool Weights::loaded() const { return body_->store.loaded() && (!body_->substitutes || body_->substitutes->loaded()); }

uint64_t Weights::substitute_bytes() const { return body_->substitutes ? body_->substitutes->bytes() : 0; }

const LayerWeights& Weights::partial_layer(int64_t index) const {
  const Substitutes* const substitutes = body_->substitutes.get();
  return substitutes != nullptr && index >= layer_count() - host_layers() ? substitutes->layer(index) : layer(index);
}

uint64_t Weights::staging_bytes() const {
  return std::max(body_->store.staging_bytes(), body_->substitutes ? body_->substitutes->staging_bytes() : 0);
}

bool Weights::load(const Checkpoint& checkpoint, Device& device, Progress* progress,
                   const std::atomic<bool>* interrupt) {
  if (!body_->store.loaded() && !body_->store.load(checkpoint, device, "loading weights", progress, interrupt)) {
    return false;
  }
  Substitutes* const substitutes = body_->substitutes.get();
  return substitutes == nullptr || substitutes->loaded() || substitutes->load(checkpoint, device, progress, interrupt);
}

const Substitutes* Weights::possible_substitutes(WeightType type) const {
  for (const std::unique_ptr<Substitutes>& each : body_->possible) {
    if (each->type() == type) return each.get();
  }
  return nullptr;
}

std::optional<WeightType> Weights::substitute() const {
  return body_->substitutes ? std::optional(body_->substitutes->type()) : std::nullopt;
}

void Weights::set_substitute(Device& device, std::optional<WeightType> type) {
  body_->substitutes.reset();
  if (!type || host_layers() == 0) return;
  CHECK(possible_substitutes(*type) != nullptr, weight_type_info(*type).name);
  auto made = std::make_unique<Substitutes>(*body_->checkpoint, *type, dtype(), device.backend(),
                                            layer_count() - host_layers());
  made->allocate(device);
  body_->substitutes = std::move(made);
}

}  // namespace headrace
