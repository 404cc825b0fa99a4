// What a family of models is: the names that it is known by, and how what its files say becomes a ModelConfig with the
// decoder's tensors. Each family is one file here, and families.cc lists them. What stands behind the list walks over
// it and asks no family for its name. Plain values; the functions are pure.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/gguf/gguf.h"

namespace headrace {

class JsonFields;

// A directory's config.json.
struct JsonForm {
  std::string_view name;                                     // ModelConfig::family
  std::vector<std::string_view> model_types, architectures;  // either may name it; both have to agree
  // Sets everything that the keys say. Throws Error(kBadInput).
  void (*read)(const JsonFields& fields, ModelConfig* config);
};

// The metadata of a GGUF file. `bytes` is the file.
struct GgufSource {
  const GgufFile& file;
  const ByteSource& bytes;
  GgufFields fields;
  std::string_view architecture;
  std::string key(std::string_view name) const { return std::string(architecture) + "." + std::string(name); }
};

// A tensor of a layer: "attn_q" is "self_attn.q_proj" in the decoder, whatever follows the last dot.
struct TensorName {
  std::string_view gguf, decoder;
};

// A GGUF file.
struct GgufForm {
  std::string_view architecture;                                // general.architecture; ModelConfig::family
  std::string_view also;                                        // models that are stored under this name, too
  void (*read)(const GgufSource& source, ModelConfig* config);  // as JsonForm's
  std::vector<TensorName> tensors;
  // The rows of each q and k head are stored as rotary pairs: row 2i + j for half j and pair i, so that a rotation
  // turns neighbours. The decoder, as Hugging Face does, keeps the halves apart: row j * head_dim / 2 + i.
  bool rotary_pairs = false;
};

struct Family {
  std::vector<JsonForm> json;
  std::vector<GgufForm> gguf;
};

const Family& llama_family();
const Family& mistral_family();
const Family& phi3_family();
const Family& qwen_family();
const Family& seed_oss_family();

}  // namespace headrace
