// The tensors of a model's files as a decoder names and shapes them (runtime/model/decoder_tensors.h). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/tensor_source.h"

namespace headrace {

// A stored tensor, or a range of its rows.
struct TensorPart {
  TensorInfo tensor;
  size_t stored = 0;  // index of the stored tensor
  int64_t first_row = 0;
};

// `stored` has Hugging Face names. Of a model that takes images, its decoder's tensors alone, without the prefix that
// they have there. Q, K and V that are stored as one matrix (qkv_proj) are three parts, gate and up
// (gate_up_proj) are two. Throws Error(kBadInput) if such a matrix has another shape than the config asks for.
std::vector<TensorPart> decoder_parts(const ModelConfig& config, const std::vector<TensorInfo>& stored,
                                      const std::string& source);

}  // namespace headrace
