#include "runtime/model/weight_streamer.h"

#include <algorithm>
#include <span>
#include <vector>

namespace headrace {
namespace {

constexpr uint64_t kPieceBytes = 16 * kMiB;  // so that copies of other streams get their turn

}  // namespace

WeightStreamer::~WeightStreamer() { end(); }

void WeightStreamer::end_once() {
  if (once_) end();
}

void WeightStreamer::end() {
  if (!streams()) return;
  link_.remove(*this);
  link_.drain();
  ring_.reset();
}

void WeightStreamer::begin(Device& device, int slots, uint64_t slot_bytes) {
  if (weights_.host_layers() == 0) return;
  CHECK(!streams() && weights_.loaded());
  once_ = weights_.experts_alone();
  ring_.emplace(device, slots, slot_bytes);
  first_pass_ = link_.pass() + 1;
  link_.add(*this);
}

LinkPlace WeightStreamer::next() const {
  const auto pass = static_cast<int64_t>(filled_ / static_cast<uint64_t>(weights_.host_layers()));
  return {.pass = first_pass_ + pass, .layer = layer_of(filled_), .rank = 0};
}

bool WeightStreamer::has_room() const {
  if (once_ && filled_ == static_cast<uint64_t>(weights_.host_layers())) return false;
  return filled_ < used_ + static_cast<uint64_t>(ring_->slots());
}

void WeightStreamer::fill() {
  const int64_t layer = layer_of(filled_);
  std::vector<StagingRing::Part> pieces;
  uint64_t begin = 0;
  for (const std::span<const std::byte> part : weights_.host_parts(layer)) {
    for (uint64_t offset = 0; offset < part.size(); offset += kPieceBytes) {
      pieces.push_back({.offset = begin + offset,
                        .src = part.data() + offset,
                        .pieces = {.bytes = std::min<uint64_t>(kPieceBytes, part.size() - offset)}});
    }
    begin += part.size();
  }
  link_.enqueue([&](Stream& in) { ring_->fill(filled_, pieces, in, {"weights, layer", layer}); });
  ++filled_;
}

const LayerWeights& WeightStreamer::use(int64_t layer, Stream& compute) {
  if (!streams() || layer < first_layer()) return weights_.layer(layer);
  CHECK(layer == layer_of(used_) && used_ < filled_, "layer ", layer, " where ", layer_of(used_), " is next");
  layer_ = weights_.layer_at(layer, ring_->acquire(used_, compute));
  return layer_;
}

void WeightStreamer::done(int64_t layer, Stream& compute) {
  if (!streams() || layer < first_layer()) return;
  CHECK(layer == layer_of(used_), "layer ", layer);
  ring_->release(used_++, compute);
  link_.pump();
}

}  // namespace headrace
