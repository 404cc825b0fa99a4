// What Gemma 3 and Gemma 4 have in common. Each function throws Error(kBadInput) that names the file, the key and the
// values. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/families/family.h"

namespace headrace {

constexpr double kGemmaTheta = 1e6, kGemmaLocalTheta = 1e4, kGemmaMaxTheta = 1e15;
constexpr int64_t kGemmaPattern = 6;  // each sixth layer sees all rows, where a file says nothing else

// Of layers with a window: rope_parameters.sliding_attention, or rope_local_base_freq.
RopeConfig gemma_local_rope(const JsonFields& fields);
// Refuses what neither family has.
void refuse_of_gemma(const JsonFields& fields);
// Reads a config.json whose decoder's part may be in text_config. `types`: that part's model_type, the usual one first.
using ReadGemmaText = void (*)(const JsonFields& fields, ModelConfig* config);
void read_gemma_config(const JsonFields& whole, const std::vector<std::string>& types, ReadGemmaText read,
                       ModelConfig* config);
// Of a directory, as JsonForm has it.
std::string gemma_tensor(std::string_view stored);
// Of a GGUF file, as far as both have them.
const std::vector<TensorName>& gemma_tensors();

}  // namespace headrace
