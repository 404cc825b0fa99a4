// What a family of models is: the names that it is known by, and how what its files say becomes a ModelConfig with the
// decoder's tensors. Each family is one file here, and read_config.cc lists them. What stands behind the list walks
// over it and asks no family for its name. Plain values; the functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/gguf/gguf.h"

namespace headrace {

class JsonFields;

// What a directory stores in place of a tensor's values.
enum class StoredAs : uint8_t {
  kItself,
  kLessOne,        // a norm's weight less 1
  kLogOfNegative,  // ln(-value)
};
// Of tensors whose names end in `suffix`, which is `decoder` in the decoder's name. Empty: the same.
struct StoredValues {
  std::string_view suffix, decoder;
  StoredAs as;
};

// A directory's config.json.
struct JsonForm {
  std::string_view name;                                     // ModelConfig::family
  std::vector<std::string_view> model_types, architectures;  // either may name it; both have to agree
  // Sets everything that the keys say. Throws Error(kBadInput).
  void (*read)(const JsonFields& fields, ModelConfig* config);
  // The decoder's name of a stored tensor, but for its suffix; empty: the decoder has none like it. Null: names are the
  // decoder's.
  std::string (*tensor_name)(std::string_view stored) = nullptr;
  std::vector<StoredValues> stored = {};  // the first whose suffix fits counts; none: a tensor is stored as itself
};

// The metadata of a GGUF file. `bytes` is the file.
struct GgufSource {
  const GgufFile& file;
  const ByteSource& bytes;
  GgufFields fields;
  std::string_view architecture;
  std::string key(std::string_view name) const { return std::string(architecture) + "." + std::string(name); }
};

// A tensor of a layer: "attn_q" is "self_attn.q_proj" in the decoder, whatever follows the last dot, or these are whole
// names. A tensor of no layer has whole names, too. Of the MTP block, whose number is that of a further layer, the
// decoder's may begin with "mtp.".
struct TensorName {
  std::string_view gguf, decoder;
  bool whole = false;
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

// Models that are near to the family, by their names in either format.
struct RefusedModels {
  std::vector<std::string_view> names;
  std::string_view why;  // "is a mixture of experts"
};

struct Family {
  std::vector<JsonForm> json;
  std::vector<GgufForm> gguf;
  std::vector<RefusedModels> refused = {};
};

const Family& gemma_family();
const Family& gemma4_family();
const Family& gptoss_family();
const Family& llama_family();
const Family& mistral_family();
const Family& phi3_family();
const Family& qwen_family();
const Family& qwen3moe_family();
const Family& qwen35_family();
const Family& seed_oss_family();

}  // namespace headrace
