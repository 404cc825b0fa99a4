// Weights that are placed in a WeightStore together with the views that will point to them. Owns nothing; views must
// stay where they are until the last bind().
#pragma once

#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/weight_store.h"

namespace headrace {

class WeightPlaces {
 public:
  explicit WeightPlaces(WeightStore* store) : store_(store) {}

  void place(const void** view, std::initializer_list<const TensorInfo*> parts) {
    views_.emplace_back(view, store_->place(parts));
  }
  // Without a view.
  void place(std::initializer_list<const TensorInfo*> parts) { store_->place(parts); }
  // In f32, whatever the store's type is.
  void place_f32(const float** view, const TensorInfo* tensor) {
    views_.emplace_back(view, store_->place({tensor}, DType::kF32));
  }
  void place(Weight* view, std::initializer_list<WeightStore::Rows> parts) { place(view, store_->place_matrix(parts)); }
  // A matrix without a view, of the types that `like` has.
  void place_after(const Weight& like, std::initializer_list<WeightStore::Rows> parts) {
    const Weight placed = store_->place_matrix(parts).weight;
    CHECK(placed.count == like.count && placed.rows() == like.rows() && placed.cols == like.cols);
    for (int i = 0; i < placed.count; ++i) CHECK(placed.parts[i].type == like.parts[i].type);
  }
  uint64_t next() const { return store_->next(); }  // the offset of what is placed next
  // Never quantised.
  void place_plain(Weight* view, std::initializer_list<WeightStore::Rows> parts) {
    place(view, store_->place_matrix(parts, {.dtype = store_->dtype(), .policy = WeightPolicy::kDequantise}));
  }
  void place_raw(const void** view, std::string bytes) {
    views_.emplace_back(view, store_->place_raw(std::move(bytes)));
  }
  void allocate(Device& device, const char* what) {
    store_->allocate(device, what);
    bind();
  }
  // Points all views to where the store has its memory now.
  void bind() const {
    for (const auto& [view, offset] : views_) set(view, store_->at(offset));
  }
  size_t count() const { return views_.size(); }  // of views so far
  // Points the views [first, end), which are in `object`, to a copy of their weights: those of the offset `begin` are
  // at `data`. `to` has a copy of the object.
  template <typename T>
  void bind_copy(size_t first, size_t end, const T& object, uint64_t begin, const std::byte* data, T* to) const {
    for (size_t i = first; i < end; ++i) {
      const auto place = static_cast<const std::byte*>(views_[i].first) - reinterpret_cast<const std::byte*>(&object);
      CHECK(place >= 0 && place < static_cast<std::ptrdiff_t>(sizeof(T)));
      set(reinterpret_cast<std::byte*>(to) + place, data + (views_[i].second - begin));
    }
  }

 private:
  void place(Weight* view, const WeightStore::Matrix& matrix) {
    *view = matrix.weight;
    for (int i = 0; i < matrix.weight.count; ++i) {
      views_.emplace_back(&view->parts[i].data, matrix.offsets[static_cast<size_t>(i)]);
    }
  }

  // `view`: a pointer to const, of any type.
  static void set(void* view, const std::byte* data) { std::memcpy(view, &data, sizeof data); }

  WeightStore* const store_;
  std::vector<std::pair<void*, uint64_t>> views_;
};

}  // namespace headrace
