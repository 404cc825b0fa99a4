// A layer's experts in prefill's 8 bits (kernels/int8/grouped.h): their matrices are converted once a layer, all of
// them, and the rows of a pass go through them together. Free functions over views; nothing is owned and nothing waits.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/int8/grouped.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/layers/forward.h"

namespace headrace {

// Of the room for a layer of prefill in 8 bits, with up to `rows` rows. `lean`: matrices share one place, so each is
// converted before each of its products.
struct Int8LayerSize {
  Backend backend;
  DType type;  // of the computation
  int64_t rows;
  bool lean;
};

// Room for the experts of one layer. Empty if no layer has any, or if they are beside dense parts.
struct Int8Experts {
  Int8Rows gate_up{}, down{};  // [count, n, k]
  Int8Rows input{};            // of the product that comes next, in the order of the experts
  Int8Groups groups{};
  int32_t* tiles = nullptr;  // int8_group_tiles()
  void* products = nullptr;  // [pairs, 2 * width], then [pairs, hidden]
  bool lean = false;
};
Int8Experts carve_int8_experts(const ModelConfig& config, const Int8LayerSize& size, BumpAllocator& allocator);

// Converts the experts' matrices, unless `to` is lean.
void int8_expert_weights(const LayerWeights& layer, DType type, const Int8Experts& to, Stream& stream);

// hidden += what each row's experts make of its norm, in place. `normed`: room for the rows in 8 bits, which `shared`
// reads: it enqueues what a shared expert makes of them to pass.work.branch.
void int8_experts_forward(const Pass& pass, const LayerWeights& layer, const Int8Experts& experts,
                          const Int8Rows& normed, const std::function<void()>& shared, void* hidden);

}  // namespace headrace
