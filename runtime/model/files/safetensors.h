// The safetensors format: a length, a JSON header, the tensors' bytes. Parsing checks the header against the bytes by
// the format's own rules (no gap, no overlap, nothing left over). Pure: it borrows nothing and reads only the header.
#pragma once

#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/model/files/stored_tensor.h"

namespace headrace {

// In order of position. Throws Error(kBadInput).
std::vector<StoredTensor> parse_safetensors(const ByteSource& file);

}  // namespace headrace
