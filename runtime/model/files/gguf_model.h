// What a GGUF file's metadata and tensor names say in our words: the config, the vocabulary, Hugging Face names. Pure.
#pragma once

#include <string>
#include <string_view>

#include "runtime/model/config.h"
#include "runtime/model/files/gguf.h"
#include "runtime/text/vocabulary.h"

namespace headrace {

// `bytes` is the file that was parsed (rope_freqs.weight is read from it). Throws Error(kBadInput).
ModelConfig gguf_config(const GgufFile& file, const ByteSource& bytes);
Vocabulary gguf_vocabulary(const GgufFile& file);
// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; a name that is none of ours stays as it is. `arch`
// is general.architecture: phi3 has gate and up as one tensor, under the name of up.
std::string hf_tensor_name(std::string_view name, std::string_view arch);

}  // namespace headrace
