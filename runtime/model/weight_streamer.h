// Brings the weights of the layers that are in host memory to the device, each once a pass, through a ring of whole
// layers (docs/design.md, section 8). The ring is filled ahead, across the ends of passes, in the link's order. All
// other layers are where they are. Owns the ring. Thread: that of the passes.
#pragma once

#include <cstdint>
#include <optional>

#include "offload/device/link_queue.h"
#include "offload/device/ring.h"
#include "runtime/model/weights.h"

namespace headrace {

class WeightStreamer final : private LinkQueue::Source {
 public:
  // All references must outlive this.
  WeightStreamer(const Weights& weights, LinkQueue& link) : weights_(weights), link_(link) {}
  ~WeightStreamer();
  WeightStreamer(const WeightStreamer&) = delete;
  WeightStreamer& operator=(const WeightStreamer&) = delete;

  // Allocates the ring and starts to fill it for the pass that begins next, if a layer is in host memory. REQUIRES: the
  // weights are loaded; a slot holds each of those layers.
  void begin(Device& device, int slots, uint64_t slot_bytes);
  // Where experts leave alone only prefill has the ring. Frees it then. REQUIRES: the streams that read it are idle.
  void end_once();
  bool streams() const { return ring_.has_value(); }

  // A layer's weights, for work that is enqueued on `compute` until done(). A pass uses each layer once, one after
  // another; link.begin_pass() was called for it.
  const LayerWeights& use(int64_t layer, Stream& compute);
  void done(int64_t layer, Stream& compute);

 private:
  void end();
  int64_t first_layer() const { return weights_.layer_count() - weights_.host_layers(); }
  int64_t layer_of(uint64_t number) const {
    return first_layer() + static_cast<int64_t>(number % static_cast<uint64_t>(weights_.host_layers()));
  }
  LinkPlace next() const override;
  bool has_room() const override;
  void fill() override;

  const Weights& weights_;
  LinkQueue& link_;
  int64_t first_pass_ = 0;
  bool once_ = false;  // later passes have the experts in another way
  std::optional<StagingRing> ring_;
  uint64_t filled_ = 0, used_ = 0;  // layers since begin(); `used_` are done
  LayerWeights layer_;              // the one in use
};

}  // namespace headrace
