// Divides one buffer into aligned views. With a null base it only counts, so the same code computes how much memory is
// needed and then hands it out: plan and allocation cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/base.h"

namespace headrace {

class BumpAllocator {
 public:
  explicit BumpAllocator(std::byte* base) : base_(base) {}

  template <typename T>
  T* take(int64_t count) {
    return reinterpret_cast<T*>(take_bytes(static_cast<uint64_t>(count) * sizeof(T)));
  }
  std::byte* take_bytes(uint64_t bytes) {
    std::byte* const view = base_ == nullptr ? nullptr : base_ + used_;
    used_ = round_up(used_ + bytes, 256);
    return view;
  }
  uint64_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  uint64_t used_ = 0;
};

// The bytes that `carve(allocator)` takes.
template <typename Carve>
uint64_t carved_bytes(const Carve& carve) {
  BumpAllocator allocator(nullptr);
  carve(allocator);
  return allocator.used_bytes();
}

}  // namespace headrace
