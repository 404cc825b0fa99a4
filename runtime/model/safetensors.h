// The safetensors format: a length, a JSON header, the tensors' bytes. Parsing checks the header against the bytes by
// the format's own rules (no gap, no overlap, nothing left over). Pure: it borrows nothing and touches only the header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/stored_tensor.h"

namespace headrace {

// `file` is the whole file; `source` names it in errors. In order of position. Throws Error(kBadInput).
std::vector<StoredTensor> parse_safetensors(std::string_view file, const std::string& source);

}  // namespace headrace
