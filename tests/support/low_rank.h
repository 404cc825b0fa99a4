// Merges a low-rank update of the attention matrices into a GGUF model: makes SmolLM2-64K from SmolLM2-135M. The update
// is a NumPy archive (.npz): "rope_theta", and "layers.N.q_proj.a" [rank, in] and ".b" [out, rank] for q, k, v and o,
// in Hugging Face's order of rows. Plain functions; they read files.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::testing_support {

struct LongContext {
  std::string name;           // of the new model, for its metadata
  int64_t max_positions = 0;  // its trained length
};

// The new model as the bytes of a GGUF file: an updated matrix is w + b . a in F32, the others are unchanged. Each
// element of b . a is summed in double, so every machine makes the same file. Throws Error(kBadInput).
std::string merge_low_rank(const std::string& gguf, const std::string& update, const LongContext& context);

}  // namespace headrace::testing_support
