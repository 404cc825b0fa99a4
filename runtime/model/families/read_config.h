// A model's config, from config.json or from a GGUF file's metadata: looks the family up and has it read its own keys.
// Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/model/config.h"
#include "runtime/model/families/family.h"
#include "runtime/model/families/fp8_json.h"

namespace headrace {

// config.json's content, in all forms that Hugging Face has published, and which form it is. Throws Error(kBadInput).
struct JsonModel {
  ModelConfig config;
  const JsonForm* form;
  std::optional<Fp8Blocks> fp8{};  // the files may have matrices in e4m3
};
JsonModel parse_model_json(std::string_view json, const std::string& source);
inline ModelConfig parse_config_json(std::string_view json, const std::string& source) {
  return parse_model_json(json, source).config;
}

// The form that a GGUF file names. Throws Error(kBadInput) that lists the others.
const GgufForm& gguf_form(const GgufFile& file);
// `bytes` is the file that was parsed (rope_freqs.weight is read from it). Throws Error(kBadInput).
ModelConfig gguf_config(const GgufFile& file, const ByteSource& bytes);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; a name that is none of ours stays as it is. A
// block from `layers` on is MTP's.
std::string decoder_name(std::string_view name, const GgufForm& form, int64_t layers);

}  // namespace headrace
