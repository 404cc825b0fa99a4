// Which layers of a model have a window, where the files name it layer by layer or by a pattern: all but each
// `pattern`-th layer have one. Throws Error(kBadInput) that names the file, the key and the values. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/families/family.h"

namespace headrace {

// layer_types, or the pattern that the config, or else the family, has.
std::vector<bool> read_windows(const JsonFields& fields, int64_t layers, int64_t pattern);
// The same of a GGUF file, whose key, which newer files have, is a number or one value a layer.
std::vector<bool> read_windows(const GgufSource& source, int64_t layers, int64_t pattern);

}  // namespace headrace
