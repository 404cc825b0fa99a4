// Weights that are placed in a WeightStore together with the views that will point to them. Owns nothing; views must
// stay where they are until allocate().
#pragma once

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
    f32_views_.emplace_back(view, store_->place({tensor}, DType::kF32));
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
    for (const auto& [view, offset] : views_) *view = store_->at(offset);
    for (const auto& [view, offset] : f32_views_) *view = reinterpret_cast<const float*>(store_->at(offset));
  }

 private:
  void place(Weight* view, const WeightStore::Matrix& matrix) {
    *view = matrix.weight;
    for (int i = 0; i < matrix.weight.count; ++i) {
      views_.emplace_back(&view->parts[i].data, matrix.offsets[static_cast<size_t>(i)]);
    }
  }

  WeightStore* const store_;
  std::vector<std::pair<const void**, uint64_t>> views_;
  std::vector<std::pair<const float**, uint64_t>> f32_views_;
};

}  // namespace headrace
