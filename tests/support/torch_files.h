// Zip archives of stored entries and pickles as PyTorch writes them, valid and broken. Plain functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/draft_files.h"

namespace headrace::testing_support {

struct ZipFile {
  struct Entry {
    std::string name, bytes;
    uint16_t flags = 0, method = 0;
  };
  std::vector<Entry> entries;
  bool zip64 = false;  // sizes and offsets in the zip64 fields
  std::string comment;

  std::string finish() const;
};

// Pickle fragments.
std::string pickled_text(const std::string& text);
std::string pickled_int(int64_t value);
// A tensor's _rebuild_tensor_v2: `storage` is "FloatStorage", `key` the entry under data/.
struct PickledTensor {
  std::string storage, key;
  int64_t elements = 0, offset = 0;
  std::vector<int64_t> shape, strides;
};
std::string pickled(const PickledTensor& tensor);
std::vector<int64_t> row_major(const std::vector<int64_t>& shape);

// A whole file with tensors of F32, I64 and BOOL, in the format of torch.save.
std::string torch_bytes(const std::map<std::string, FileTensor>& tensors);

}  // namespace headrace::testing_support
