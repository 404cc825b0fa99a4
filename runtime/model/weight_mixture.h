// The types that the matrices of a model with random weights have, by name: one type for all of them ("q8_0"), or the
// mixture that llama.cpp's quantiser makes under that name ("q4_k_m"). Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "kernels/weights/type.h"
#include "runtime/model/config.h"

namespace headrace {

struct WeightMixture {
  const char* name;   // "q4_k_m"
  WeightType type;    // of most matrices
  WeightType larger;  // of the head, and of v and down in about half of the layers
};

const WeightMixture* find_weight_mixture(std::string_view name);  // null if there is none
std::string weight_mixture_names();                               // "q4_0, q4_1, ..."

// The type of the matrix with this name (runtime/model/decoder_tensors.h).
WeightType mixture_type(const WeightMixture& mixture, const ModelConfig& config, std::string_view tensor);

}  // namespace headrace
