// The products of a decoder layer in prefill's 8 bits (kernels/int8/op.h): the same steps as forward.h's, with matrices
// that are converted once a layer. Attention's input and output have the weights' type. Free functions over views;
// nothing is owned and nothing waits.
#pragma once

#include <cstdint>

#include "kernels/int8/op.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/layers/forward.h"
#include "runtime/layers/int8_experts.h"

namespace headrace {

// Room for one layer's matrices, and for the activations of up to `rows` rows.
struct Int8Layer {
  Int8Rows qkv{}, output{}, gate_up{}, down{};
  Int8Rows input{};  // of the product that comes next
  Int8Experts experts{};
  bool lean = false;  // the matrices share one place, so each is converted before each of its products
};
// What the CPU's threads keep for it, in addition: 0 on CUDA.
uint64_t int8_threads_bytes(const ModelConfig& config, Backend backend, int threads);
Int8Layer carve_int8_layer(const ModelConfig& config, const Int8LayerSize& size, BumpAllocator& allocator);

// Converts a layer's matrices, unless `to` is lean.
void int8_layer_weights(const LayerWeights& layer, DType type, const Int8Layer& to, Stream& stream);

// As qkv_product() and layer_output(). REQUIRES: pass.hidden_type is the weights' type.
void int8_qkv_product(const Pass& pass, const LayerWeights& layer, const Int8Layer& matrices, const void* hidden);
void int8_layer_output(const Pass& pass, const LayerWeights& layer, const Int8Layer& matrices, void* hidden);

}  // namespace headrace
