// The safetensors format: a length, a JSON header, the tensors' bytes. Parsing checks the header against the bytes by
// the format's own rules (no gap, no overlap, nothing left over). Pure: it borrows nothing and touches only the header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "BF16", as stored
  std::vector<int64_t> shape;
  uint64_t begin = 0, bytes = 0;  // from the start of the file
};

// `file` is the whole file; `source` names it in errors. In order of position. Throws Error(kBadInput).
std::vector<SafetensorsEntry> parse_safetensors(std::string_view file, const std::string& source);

}  // namespace headrace
