// Layers in fewer bits, which partial steps multiply in the place of layers whose exact weights are in host memory
// (docs/design.md, section 8). They are quantised from the exact weights as they are loaded, as --weights does it. Owns
// their memory, on the device. Thread: one at a time; immutable once loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "offload/device/device.h"
#include "runtime/base/progress.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/weight_places.h"
#include "runtime/model/weights.h"

namespace headrace {

// Lays out a layer of the model, without experts, behind what is placed.
void place_layer(const Checkpoint& checkpoint, int64_t index, LayerWeights* w, WeightPlaces* places);

class Substitutes {
 public:
  // Lays out layers [first, all) of the model, whose matrices become `type` where that has fewer bits than the files
  // have, and Q8_0 where blocks of `type` do not divide their rows. All else has the type `dtype`. There is no memory
  // yet. `checkpoint` must outlive load().
  Substitutes(const Checkpoint& checkpoint, WeightType type, DType dtype, Backend backend, int64_t first);
  Substitutes(const Substitutes&) = delete;
  Substitutes& operator=(const Substitutes&) = delete;

  WeightType type() const { return type_; }
  uint64_t bytes() const { return store_.bytes(); }
  uint64_t layer_bytes(int64_t index) const { return store_.part_bytes(place(index)); }  // in whole pages
  const LayerWeights& layer(int64_t index) const { return layers_[place(index)]; }

  void allocate(Device& device);  // throws Error(kDoesNotFit)
  // As WeightStore has them. What is damaged in the files is found as the exact weights are loaded.
  bool load(const Checkpoint& checkpoint, Device& device, Progress* progress, const std::atomic<bool>* interrupt);
  bool loaded() const { return store_.loaded(); }
  uint64_t staging_bytes() const { return store_.staging_bytes(); }

 private:
  size_t place(int64_t index) const { return static_cast<size_t>(index - first_); }

  const WeightType type_;
  const int64_t first_;
  WeightStore store_;
  WeightPlaces places_{&store_};
  std::vector<LayerWeights> layers_;
};

// Of all layers, for each type that makes every layer of the model smaller; the most bits first. `exact` has the
// layers' own weights. None for a model with experts, and on a GPU for one that is not computed in bf16.
std::vector<std::unique_ptr<Substitutes>> possible_substitutes_of(const Checkpoint& checkpoint,
                                                                  const WeightStore& exact, Backend backend);

}  // namespace headrace
