// Small models as files, for the tests of this folder: a GGUF and a Hugging Face directory that are right, to be broken
// by the tests. Plain functions.
#pragma once

#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"

namespace headrace::testing_support {

// One layer, hidden 32, 2 heads and 1 kv head of 16, ffn 32, 8 tokens; F32 tensors with values by `value(name, index)`.
GgufWriter small_gguf(const std::string& arch);
// The tensors a small_gguf of this architecture holds, by GGUF name.
std::vector<GgufWriter::Tensor> small_gguf_tensors(const std::string& arch);
float small_value(const std::string& name, size_t index);

// The same sizes as config.json (a llama), and a safetensors file whose header and data are given.
std::string small_config();
std::string safetensors_file(const std::string& header, size_t data_bytes);
// The header of a right file for small_config(), and how many bytes of data it wants.
std::string small_safetensors_header(size_t* data_bytes);

}  // namespace headrace::testing_support
