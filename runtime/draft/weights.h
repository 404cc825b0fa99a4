// A draft's weights on the device: one device buffer, and views into it. Immutable once loaded.
#pragma once

#include <atomic>

#include "runtime/model/weight_places.h"

namespace headrace {

// `place_views(checkpoint, views, places)` places the tensors of each view; their shapes were checked when the
// checkpoint was opened.
template <typename AllViews>
class DraftWeights {
 public:
  using Views = AllViews;
  // Reserves the memory before anything is read. `checkpoint` must outlive load().
  template <typename Checkpoint>
  static DraftWeights reserve(const Checkpoint& checkpoint, Device& device, const WeightStoreOptions& options) {
    DraftWeights weights;
    weights.store_ = WeightStore(options, device.backend());
    WeightPlaces places(&weights.store_);
    place_views(checkpoint, &weights.views_, &places);
    places.allocate(device, "weights of the draft");
    return weights;
  }
  // As Weights::load.
  bool load(const TensorSource& checkpoint, Device& device, Progress* progress, const std::atomic<bool>* interrupt) {
    return store_.load(checkpoint, device, "loading the draft", progress, interrupt);
  }
  bool loaded() const { return store_.loaded(); }

  DType dtype() const { return store_.dtype(); }
  uint64_t bytes() const { return store_.bytes(); }
  bool keeps_blocks() const { return store_.keeps_blocks(); }
  uint64_t staging_bytes() const { return store_.staging_bytes(); }
  const WeightDamage& damage() const { return store_.damage(); }
  const Views& views() const { return views_; }

 private:
  WeightStore store_;
  Views views_;
};

}  // namespace headrace
