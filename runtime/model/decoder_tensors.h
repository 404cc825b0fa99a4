// The tensors of a decoder with a given config, under their Hugging Face names. Their values are those that are
// computed with: a norm's weight is what multiplies (1 + w in Qwen3.5 and Gemma 3), linear_attn.A is -exp(A_log), and
// the rows of q and k are in the order that rotary positions need (runtime/model/files/row_order.h). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/config.h"

namespace headrace {

// Of what the dense part makes, of what experts read, and of what they make, where they are beside it.
inline constexpr const char* kBesideNorms[] = {
    "post_feedforward_layernorm_1.weight", "pre_feedforward_layernorm_2.weight", "post_feedforward_layernorm_2.weight"};

struct DecoderTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// In the order in which a pass uses them: embedding, layers, norm, head (omitted if tied), MTP block.
std::vector<DecoderTensor> decoder_tensors(const ModelConfig& config);

}  // namespace headrace
