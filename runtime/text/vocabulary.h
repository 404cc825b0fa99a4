// A vocabulary from a GGUF file's metadata (keys tokenizer.ggml.*), which runtime/model reads and runtime/text turns
// into a Tokenizer. A plain value; owns its strings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct Vocabulary {
  std::string source;  // the file, for errors
  // "gpt2" (byte-level BPE), "llama" (SentencePiece-style BPE with byte fallback) or "gemma4" (the same by merges)
  std::string model;
  std::string pre;  // the pre-tokenizer: "gpt-2", "default", "smollm", "llama-bpe", "dbrx", "qwen2", …; of gpt2 only
  std::vector<std::string> tokens;
  std::vector<int32_t> types;       // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;  // "left right"; not of llama
  std::vector<float> scores;        // SentencePiece
  int32_t bos = -1, eos = -1, eot = -1, unk = -1, pad = -1;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

}  // namespace headrace
