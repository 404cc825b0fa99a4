// The tensors that a decoder of a given config is made of, under their Hugging Face names. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/config.h"

namespace headrace {

struct DecoderTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// In the order in which a pass uses them: embedding, layers, norm, head (left out when it is tied).
std::vector<DecoderTensor> decoder_tensors(const ModelConfig& config);

}  // namespace headrace
