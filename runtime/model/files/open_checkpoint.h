// Opens a model's files, whatever their format. Any thread.
#pragma once

#include <memory>
#include <string>

#include "runtime/model/checkpoint.h"

namespace headrace {

// A directory, a .gguf file, or org/name in the local Hugging Face hub cache (HF_HUB_CACHE, HF_HOME,
// ~/.cache/huggingface). Throws Error(kBadInput) that names the file and the value.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model);

// GGUF: Hugging Face names and row order, weights dequantised as they are read. A part of a split model opens all of
// them.
std::unique_ptr<Checkpoint> open_gguf(const std::string& path);
// config.json, generation_config.json, the weight files (tensor_files.h), tokenizer.json, the chat template.
std::unique_ptr<Checkpoint> open_hf_directory(const std::string& directory);
// The files of such a directory, beside its weights, that a text may depend on. The last is read for its chat template,
// where the first is not there.
inline constexpr const char* kModelTextFiles[] = {"chat_template.jinja", "config.json", "generation_config.json",
                                                  "tokenizer.json", "tokenizer_config.json"};

}  // namespace headrace
