// Compares a model in a directory with the same model in a GGUF file. Plain functions, which fail the running test.
#pragma once

#include <string>
#include <vector>

#include "runtime/model/checkpoint.h"
#include "runtime/model/decoder_tensors.h"

namespace headrace::testing_support {

// A model of tests/data/tiny.
std::string tiny_file(const std::string& name);
// In f32. REQUIRES: the model has the tensor in this shape.
std::vector<float> tensor_values(const Checkpoint& model, const DecoderTensor& tensor);

// Of all families: what a config says but its layers, and of RoPE the base alone.
void expect_same_sizes(const Checkpoint& gguf, const Checkpoint& directory);
// The tensors of the directory's config, with the same values, and nothing in the files that has no use.
void expect_same_tensors(const Checkpoint& gguf, const Checkpoint& directory);

}  // namespace headrace::testing_support
