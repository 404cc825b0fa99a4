// A GGUF file as a Checkpoint: Hugging Face names and row order, weights dequantised as they are read. Thread: opening
// from any thread, the result as Checkpoint says.
#pragma once

#include <memory>
#include <string>

#include "runtime/model/checkpoint.h"

namespace headrace {

std::unique_ptr<Checkpoint> open_gguf(const std::string& path);

}  // namespace headrace
