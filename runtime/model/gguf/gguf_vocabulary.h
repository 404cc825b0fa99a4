// The vocabulary in a GGUF file's metadata. Pure.
#pragma once

#include "runtime/model/gguf/gguf.h"
#include "runtime/text/vocabulary.h"

namespace headrace {

// Throws Error(kBadInput).
Vocabulary gguf_vocabulary(const GgufFile& file);

}  // namespace headrace
