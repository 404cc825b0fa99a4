// Writes an opened model as a Hugging Face directory (config.json and one model.safetensors), so that both loaders can
// read the same numbers. Writes a file tree; several processes may request the same one.
#pragma once

#include <string>

#include "cache/base.h"
#include "runtime/model/checkpoint.h"

namespace headrace {

// Writes `folder`/config.json and `folder`/model.safetensors with every weight in `type`. Any thread.
void write_hf_directory(const Checkpoint& model, DType type, const std::string& folder);

// The file that the tests labelled `model` read: HEADRACE_TEST_GGUF, set by tests/run.sh. Throws if it is not set.
std::string test_gguf();

// test_gguf() as a directory in `type`, made once beside the GGUF file and renamed when complete.
std::string test_gguf_as_directory(DType type);

}  // namespace headrace
