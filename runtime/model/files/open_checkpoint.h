// Opens a model's files, whatever their format. Any thread.
#pragma once

#include <memory>
#include <string>

#include "runtime/model/checkpoint.h"

namespace headrace {

// A directory, a .gguf file, or org/name in the local Hugging Face hub cache (HF_HUB_CACHE, HF_HOME,
// ~/.cache/huggingface). Throws Error(kBadInput) that names the file and the value.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& model);

}  // namespace headrace
