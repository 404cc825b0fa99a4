#include "runtime/model/weight_mixture.h"

#include <charconv>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr WeightMixture kMixtures[] = {
    {"q4_0", WeightType::kQ4_0, WeightType::kQ4_0},        {"q4_1", WeightType::kQ4_1, WeightType::kQ4_1},
    {"q5_0", WeightType::kQ5_0, WeightType::kQ5_0},        {"q5_1", WeightType::kQ5_1, WeightType::kQ5_1},
    {"q8_0", WeightType::kQ8_0, WeightType::kQ8_0},        {"q4_k", WeightType::kQ4K, WeightType::kQ4K},
    {"q5_k", WeightType::kQ5K, WeightType::kQ5K},          {"q6_k", WeightType::kQ6K, WeightType::kQ6K},
    {"q2_k", WeightType::kQ2K, WeightType::kQ2K},          {"q3_k", WeightType::kQ3K, WeightType::kQ3K},
    {"iq4_nl", WeightType::kIQ4NL, WeightType::kIQ4NL},    {"iq4_xs", WeightType::kIQ4XS, WeightType::kIQ4XS},
    {"iq3_s", WeightType::kIQ3S, WeightType::kIQ3S},       {"iq3_xxs", WeightType::kIQ3XXS, WeightType::kIQ3XXS},
    {"iq2_s", WeightType::kIQ2S, WeightType::kIQ2S},       {"iq2_xs", WeightType::kIQ2XS, WeightType::kIQ2XS},
    {"iq2_xxs", WeightType::kIQ2XXS, WeightType::kIQ2XXS}, {"q4_k_m", WeightType::kQ4K, WeightType::kQ6K},
    {"q5_k_m", WeightType::kQ5K, WeightType::kQ6K},        {"mxfp4", WeightType::kMXFP4, WeightType::kQ8_0},
};

// The first and the last eighth of the layers, and every third between.
bool is_larger_layer(int64_t layer, int64_t layers) {
  const int64_t eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

// Of the matrix that a Gated DeltaNet layer has for q, k and v together: a bit more than most have.
WeightType joined_type(const WeightMixture& mixture) {
  const bool mixed = mixture.type != mixture.larger;
  return mixed && mixture.type == WeightType::kQ4K ? WeightType::kQ5K : mixture.larger;
}

int64_t layer_of(std::string_view tensor) {
  constexpr std::string_view kPrefix = "model.layers.";
  int64_t layer = -1;
  if (tensor.starts_with(kPrefix)) std::from_chars(tensor.begin() + kPrefix.size(), tensor.end(), layer);
  return layer;
}

}  // namespace

const WeightMixture* find_weight_mixture(std::string_view name) {
  for (const WeightMixture& mixture : kMixtures) {
    if (name == mixture.name) return &mixture;
  }
  return nullptr;
}

std::string weight_mixture_names() {
  std::string names;
  for (const WeightMixture& mixture : kMixtures) names += str(names.empty() ? "" : ", ", mixture.name);
  return names;
}

// MXFP4 is what experts are published in; all else is in the larger type.
WeightType mixture_type(const WeightMixture& mixture, const ModelConfig& config, std::string_view tensor) {
  if (mixture.type == WeightType::kMXFP4 && tensor.find(".mlp.experts.") == std::string_view::npos)
    return mixture.larger;
  if (mixture.type == WeightType::kMXFP4) return mixture.type;
  if (tensor == (config.tied_head ? "model.embed_tokens.weight" : "lm_head.weight")) return mixture.larger;
  if (tensor.ends_with("linear_attn.in_proj_qkv.weight")) return joined_type(mixture);
  const bool may_be_larger = tensor.ends_with("self_attn.v_proj.weight") || tensor.ends_with(".down_proj.weight");
  return may_be_larger && is_larger_layer(layer_of(tensor), config.layer_count()) ? mixture.larger : mixture.type;
}

}  // namespace headrace
