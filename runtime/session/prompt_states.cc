#include "runtime/session/prompt_states.h"

#include <algorithm>

namespace headrace {

HostStates::HostStates(const SessionLayout& layout, std::byte* slots, int64_t groups)
    : groups_(groups),
      layers_(layout.config().layer_count()),
      ahead_(std::min(kStateSlots, groups)),
      slot_bytes_(static_cast<uint64_t>(layout.prefill_group()) * layout.hidden_row_bytes()),
      slots_(slots),
      memory_(layout.device().allocate_pinned(static_cast<uint64_t>(layout.computed_rows()) * layout.hidden_row_bytes(),
                                              "the prompt's states")),
      in_(layout.device().make_stream("states in", StreamRole::kCopy)),
      out_(layout.device().make_stream("states out", StreamRole::kCopy)) {
  for (auto* events : {&computed_, &left_, &arrived_}) {
    for (std::unique_ptr<Event>& event : *events) event = layout.device().make_event();
  }
}

std::byte* HostStates::next(Stream& compute) {
  const auto& events = number_ < groups_ ? left_ : arrived_;
  compute.wait(*events[static_cast<size_t>(number_ % kStateSlots)]);
  return slot(number_);
}

// Once these states have left, so have those of the same group in the layer before, and those that were in the slot of
// the group that is fetched.
void HostStates::done(uint64_t offset, uint64_t bytes, Stream& compute) {
  const auto own = static_cast<size_t>(number_ % kStateSlots);
  if (number_ < groups_) places_.push_back({offset, bytes});
  compute.record(*computed_[own]);
  out_->wait(*computed_[own]);
  out_->copy(all() + offset, slot(number_), bytes, Link::kDeviceToHost, "states");
  out_->record(*left_[own]);
  const int64_t later = number_ + ahead_;
  ++number_;
  if (later < groups_ || later >= groups_ * layers_) return;
  const Place& place = places_[static_cast<size_t>(later % groups_)];
  const auto there = static_cast<size_t>(later % kStateSlots);
  in_->wait(*left_[own]);
  in_->copy(slot(later), all() + place.offset, place.bytes, Link::kHostToDevice, "states");
  in_->record(*arrived_[there]);
}

void HostStates::finish(Stream& compute) {
  if (number_ > 0) compute.wait(*left_[static_cast<size_t>((number_ - 1) % kStateSlots)]);
}

}  // namespace headrace
