// A Hugging Face directory as a Checkpoint: config.json, generation_config.json, its weight files (tensor_files.h),
// tokenizer.json, the chat template. Thread: opening from any thread, the result as Checkpoint says.
#pragma once

#include <memory>
#include <string>

#include "runtime/model/checkpoint.h"

namespace headrace {

std::unique_ptr<Checkpoint> open_hf_directory(const std::string& directory);

}  // namespace headrace
