#include "runtime/layers/product_bytes.h"

#include <algorithm>

namespace headrace {

std::vector<ProductSize> layer_products(int64_t hidden, std::span<const LayerSpec> layers, DType type,
                                        DType hidden_type) {
  std::vector<ProductSize> sizes;
  for (const LayerSpec& layer : layers) {
    sizes.push_back({layer.in_width(), hidden, type});
    sizes.push_back({hidden, layer.out_width(), hidden_type});
    if (const std::optional<ExpertsSpec>& experts = layer.ffn.experts) {
      sizes.push_back({experts->scores(), hidden, DType::kF32, true});
      sizes.push_back({2 * experts->width, hidden, type, true});
      sizes.push_back({hidden, experts->width, DType::kF32, true});
    }
    if (layer.token_width > 0) {
      sizes.push_back({layer.token_width, hidden, type});
      sizes.push_back({hidden, layer.token_width, hidden_type});
    }
    if (layer.ffn.width > 0) {
      sizes.push_back({2 * layer.ffn.width, hidden, type});
      sizes.push_back({hidden, layer.ffn.width, hidden_type});
    }
  }
  return sizes;
}

uint64_t most_product_bytes(const ProductsOf& of, std::span<const ProductSize> sizes) {
  uint64_t most = 0;
  for (const ProductSize& size : sizes) {
    if (size.experts && of.place.backend == Backend::kCuda) continue;
    ProductParams params{};
    params.type = of.type;
    params.out_type = size.out_type;
    params.rows = of.rows;
    params.n = size.n;
    params.k = size.k;
    params.path = size.experts ? ProductPath::kDecode : of.path;
    most = std::max(most, product_kind_bytes(of.place, params));
  }
  return most;
}

uint64_t product_bytes(const ModelConfig& config, const Weights& weights, Stream& stream, int threads, int64_t rows,
                       ProductPath path, bool substitutes) {
  const bool decode = path == ProductPath::kDecode;
  const DType type = weights.dtype();
  std::vector<ProductSize> sizes = layer_products(config.hidden, config.layers, type, decode ? DType::kF32 : type);
  if (config.token_width() > 0) sizes.push_back({config.layer_count() * config.token_width(), config.hidden, type});
  if (decode) sizes.push_back({config.vocab, config.hidden, DType::kF32});
  const ProductPlace place = product_place(stream.backend(), threads, substitutes || weights.keeps_blocks());
  return whole_pages(product_workspace_bytes(stream)) + most_product_bytes({place, type, rows, path}, sizes);
}

}  // namespace headrace
