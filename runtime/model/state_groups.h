// Which layers remember what. A group is the layers whose states are of one kind and one shape: those whose attention
// sees all rows have rows of a KV cache, which grow with the context; those with a window keep their last rows; those
// with a recurrent state have a state of constant size. A layer that reads an earlier one's rows has none. What holds a
// group's states counts its layers from 0 and knows no other layers. Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/model/config.h"

namespace headrace {

enum class StateGroup : uint8_t { kRows, kWindow, kRecurrent };

inline StateGroup group_of(const LayerSpec& layer) {
  if (!layer.has_attention()) return StateGroup::kRecurrent;
  return layer.attention().window > 0 ? StateGroup::kWindow : StateGroup::kRows;
}

// A layer's group, and its number within it.
struct StatePlace {
  StateGroup group;
  int64_t place;
  bool own = true;  // false: the state is an earlier layer's, which this one reads
};

class StateGroups {
 public:
  explicit StateGroups(const ModelConfig& config) {
    for (const LayerSpec& layer : config.layers) {
      const StateGroup group = group_of(layer);
      if (layer.has_attention() && !layer.keeps_rows()) {
        places_.push_back({group, place(layer.attention().rows_of), false});
      } else {
        places_.push_back({group, counts_[static_cast<size_t>(group)]++});
      }
    }
  }
  int64_t row_layers() const { return count(StateGroup::kRows); }
  int64_t window_layers() const { return count(StateGroup::kWindow); }
  int64_t recurrent_layers() const { return count(StateGroup::kRecurrent); }
  // Whether a later prompt can begin at snapshots alone, because some layers' states cannot be cut to fewer tokens.
  bool need_snapshots() const { return window_layers() > 0 || recurrent_layers() > 0; }
  StatePlace at(int64_t layer) const { return places_[static_cast<size_t>(layer)]; }
  int64_t place(int64_t layer) const { return at(layer).place; }

 private:
  int64_t count(StateGroup group) const { return counts_[static_cast<size_t>(group)]; }

  std::array<int64_t, 3> counts_{};
  std::vector<StatePlace> places_;  // [layers]
};

}  // namespace headrace
