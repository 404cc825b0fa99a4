// A GGUF model with a low-rank update of its attention matrices merged: what makes SmolLM2-64K out of SmolLM2-135M. The
// update is a NumPy archive (.npz): "rope_theta", and "layers.N.q_proj.a" [rank, in] and ".b" [out, rank] for q, k, v
// and o, in the order of rows that Hugging Face has. Plain functions; they read files.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::testing_support {

struct LongContext {
  std::string name;           // of the new model, for its metadata
  int64_t max_positions = 0;  // that it was trained for
};

// The new model, as the bytes of a GGUF file: a matrix that is updated is w + b . a in F32, all else is as it was. Each
// element of b . a is summed in double, so that every machine makes the same file. Throws Error(kBadInput).
std::string merge_low_rank(const std::string& gguf, const std::string& update, const LongContext& context);

}  // namespace headrace::testing_support
