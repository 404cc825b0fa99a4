// Weights in 8-bit floats as config.json announces them (quantization_config). Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/json_file.h"

namespace headrace {

// Matrices in e4m3, each block of `rows` x `cols` weights with one scale that its values are multiplied by. Which
// matrices are so, the files say; the others are plain.
struct Fp8Blocks {
  int64_t rows = 0, cols = 0;
};

// None: the config announces no quantised weights. Throws Error(kBadInput) that names any other kind of them. How a
// published kernel would round activations does not matter: they are not quantised here. None, too, for experts in
// MXFP4, which only some families store.
std::optional<Fp8Blocks> fp8_blocks(const JsonFields& config);
// Throws Error(kBadInput) if the config announces them: for the other families.
void refuse_mxfp4(const JsonFields& config);

}  // namespace headrace
