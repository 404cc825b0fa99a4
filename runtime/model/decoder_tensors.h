// The tensors of a decoder with a given config, under their Hugging Face names. Pure.
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

// In the order in which a pass uses them: embedding, layers, norm, head (omitted if tied).
std::vector<DecoderTensor> decoder_tensors(const ModelConfig& config);

}  // namespace headrace
