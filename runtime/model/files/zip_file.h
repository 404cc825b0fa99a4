// The zip format as far as archives of arrays use it (PyTorch's files, NumPy's .npz): entries stored as they are, found
// by the central directory, zip64 where sizes ask for it. Every offset is checked against the bytes. Pure: it borrows
// nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/input_file.h"

namespace headrace {

struct ZipEntry {
  std::string name;
  uint64_t begin = 0, bytes = 0;  // of the entry's data, from the start of the file
};

// In the directory's order. Throws Error(kBadInput), for a compressed or encrypted entry too.
std::vector<ZipEntry> parse_zip(const ByteSource& file);

}  // namespace headrace
