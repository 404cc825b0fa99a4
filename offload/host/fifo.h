// A first-in, first-out queue of fixed size that allocates only in its constructor. Owns its items. Thread: one at a
// time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cache/base.h"

namespace headrace {

template <typename T>
class Fifo {
 public:
  explicit Fifo(size_t capacity) : items_(capacity) {}
  bool empty() const { return count_ == 0; }
  void clear() { count_ = 0; }
  void push(const T& item) {
    CHECK(count_ < items_.size(), "capacity=", items_.size());
    items_[(first_ + count_++) % items_.size()] = item;
  }
  T pop() {
    --count_;
    return items_[std::exchange(first_, (first_ + 1) % items_.size())];
  }

 private:
  std::vector<T> items_;
  size_t first_ = 0, count_ = 0;
};

}  // namespace headrace
