// A Hugging Face directory as a Checkpoint: config.json, generation_config.json, its weight files (tensor_files.h),
// tokenizer.json, the chat template. Thread: opening from any thread, the result as Checkpoint says.
#pragma once

#include <memory>
#include <string>

#include "runtime/model/checkpoint.h"

namespace headrace {

// The files of a directory, beside its weights, that a text may depend on. The last is read for its chat template,
// where the first is not there.
inline constexpr const char* kModelTextFiles[] = {"chat_template.jinja", "config.json", "generation_config.json",
                                                  "tokenizer.json", "tokenizer_config.json"};

std::unique_ptr<Checkpoint> open_hf_directory(const std::string& directory);

}  // namespace headrace
