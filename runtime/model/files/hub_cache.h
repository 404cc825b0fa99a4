// Where a model argument leads: a path that exists, or org/name in the local Hugging Face hub cache (HF_HUB_CACHE, else
// HF_HOME/hub, else ~/.cache/huggingface/hub). Reads the environment and the file system; from any thread that does not
// race with setenv.
#pragma once

#include <string>

namespace headrace {

// The path of a directory or file that exists. Error(kBadInput) says where it looked.
std::string find_model(const std::string& model);

}  // namespace headrace
