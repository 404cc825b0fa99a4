// Which layers remember what. A group is the layers whose states are of one kind and one shape: those with attention
// have rows of a KV cache, which grow with the context; those with a recurrent state have a state of constant size.
// What holds a group's states counts its layers from 0 and knows no other layers. Plain values; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/config.h"

namespace headrace {

class StateGroups {
 public:
  explicit StateGroups(const ModelConfig& config) {
    for (const LayerSpec& layer : config.layers) {
      int64_t& count = layer.has_attention() ? rows_ : recurrent_;
      places_.push_back(count++);
    }
  }
  int64_t row_layers() const { return rows_; }
  int64_t recurrent_layers() const { return recurrent_; }
  // The layer's number within its group.
  int64_t place(int64_t layer) const { return places_[static_cast<size_t>(layer)]; }

 private:
  int64_t rows_ = 0, recurrent_ = 0;
  std::vector<int64_t> places_;  // [layers]
};

}  // namespace headrace
