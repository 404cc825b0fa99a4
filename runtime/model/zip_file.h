// The zip format as far as archives of arrays use it (PyTorch's files, NumPy's .npz): entries stored as they are, found
// by the central directory, zip64 where sizes ask for it. Every offset is checked against the bytes. Pure: it borrows
// nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct ZipEntry {
  std::string name;
  uint64_t begin = 0, bytes = 0;  // of the entry's data, from the start of the file
};

// In the directory's order. `source` names the file in errors. Throws Error(kBadInput), for a compressed or encrypted
// entry too.
std::vector<ZipEntry> parse_zip(std::string_view file, const std::string& source);

}  // namespace headrace
