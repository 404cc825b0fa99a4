// Memory that products take beside their operands and what the stream has for them already. Of several kinds of product
// only one at a time takes it. Pure, but for what a stream has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/product/op.h"
#include "runtime/model/weights.h"

namespace headrace {

struct ProductSize {
  int64_t n, k;
  DType out_type;
  bool experts = false;  // multiplied as the decode path does in every pass, without the library
};
// Those of layers with weights of `type`. `hidden_type`: of the residual stream.
std::vector<ProductSize> layer_products(int64_t hidden, std::span<const LayerSpec> layers, DType type,
                                        DType hidden_type);

// `threads`: the device's.
inline ProductPlace product_place(Backend backend, int threads, bool keeps_blocks) {
  return {.backend = backend, .unpacking_threads = keeps_blocks ? threads : 0};
}
// Products of up to `rows` rows, by weights of `type`.
struct ProductsOf {
  ProductPlace place;
  DType type;
  int64_t rows;
  ProductPath path;
};
// What the kind takes that takes most.
uint64_t most_product_bytes(const ProductsOf& of, std::span<const ProductSize> sizes);
// All that a model's products will take, enqueued on `stream`. On the decode path the head's are among them.
// `substitutes`: passes multiply some, whatever the weights are.
uint64_t product_bytes(const ModelConfig& config, const Weights& weights, Stream& stream, int threads, int64_t rows,
                       ProductPath path, bool substitutes = false);

}  // namespace headrace
